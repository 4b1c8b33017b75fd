"""The compile gate: properties of every kernel of a server, compiled by NVRTC for each architecture, without a device.

There are no stacks and no spilled registers; registers are within the limits of production.py; attention has the
instructions that make it fast; shared memory fits; the struct of parameters is as large as in Python.
"""

import ctypes
import hashlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from paged_serve.workers.kernels.cuda.kernel import Kernel

from .cubin import KernelResources, read_cubin
from .production import (
    ATTENTION_REGISTERS,
    LIMITS,
    SLACK_REGISTERS,
    SOURCES,
    STRUCTS,
    attention_registers,
    has_options,
    mirror,
    production_kernels,
    registers_allowed,
    title,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no NVRTC for this system")

CACHE = Path(__file__).parents[3] / "build" / "cubins"
# The maximum, including the system's 1 KB from sm_90 on, which counts as static there.
SHARED_BYTES_OF_A_BLOCK = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_90a": 228 << 10, "sm_100": 228 << 10}
KERNELS = {arch: production_kernels(arch) for arch in SHARED_BYTES_OF_A_BLOCK}
FAST = "sm_90a"  # the others are compiled nightly
CASES = [(arch, kernel) for arch, kernels in KERNELS.items() for kernel in kernels]


def one_of_each(kernels: list[Kernel]) -> Iterator[Kernel]:
    """A variant of each kernel, chosen by a hash of the sources, so each change of them compiles others."""
    choice = random.Random(hashlib.sha256(repr(SOURCES).encode()).digest())
    variants = defaultdict[str, list[Kernel]](list)
    for kernel in kernels:
        variants[kernel.function].append(kernel)
    return map(choice.choice, variants.values())


CHOSEN = set(one_of_each(KERNELS[FAST]))


def nightly_but_the_chosen(cases):
    fast = {(FAST, kernel) for kernel in CHOSEN}
    return [pytest.param(*case, marks=[] if case in fast else pytest.mark.nightly) for case in cases]


def resources(kernel: Kernel, arch: str) -> KernelResources:
    from paged_serve.workers.kernels.cuda.nvrtc import CubinCache

    return read_cubin(CubinCache(CACHE).path(kernel, arch).read_bytes())[kernel.function]


@pytest.mark.parametrize(
    ("arch", "kernel"), nightly_but_the_chosen(CASES), ids=[f"{arch}-{title(kernel)}" for arch, kernel in CASES]
)
def test_a_kernel_keeps_within_its_limits(arch, kernel):
    found, limits = resources(kernel, arch), LIMITS[kernel.function]
    assert found.stack_bytes == 0
    assert found.instructions["LDL"] == found.instructions["STL"] == 0, "registers are spilled"
    assert found.registers <= registers_allowed(kernel, arch)
    assert all(found.instructions[name] for name in limits.instructions), found.instructions
    assert kernel.shared_bytes + found.static_shared_bytes <= SHARED_BYTES_OF_A_BLOCK[arch]
    assert found.params_bytes == ctypes.sizeof(mirror(STRUCTS[kernel.function]))


def test_the_register_table_of_attention_has_exactly_the_compiled_variants():
    variants = [(arch, kernel) for arch, kernel in CASES if kernel.function == "paged_attention"]
    named = {(_kv(kernel), dict(kernel.defines)["HEAD_DIM"], arch) for arch, kernel in variants}
    assert named == set(ATTENTION_REGISTERS)


@pytest.mark.nightly  # the limit of each variant above is the table's
@pytest.mark.parametrize("arch", KERNELS)
def test_the_register_table_of_attention_matches_this_compiler(arch):
    """This also detects improvements, so that the table is updated."""
    off = {}
    for kernel in KERNELS[arch]:
        if kernel.function == "paged_attention" and not has_options(kernel):
            found, expected = resources(kernel, arch).registers, attention_registers(kernel, arch)
            if abs(found - expected) > SLACK_REGISTERS:
                off[title(kernel)] = found, expected
    assert not off, "(found, in the comment of attention/paged_attention.cu)"


def _kv(kernel: Kernel) -> str:
    return "fp8" if dict(kernel.defines)["KV"] == "fp8" else "bf16"
