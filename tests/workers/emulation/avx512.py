"""Builds the libraries for AVX512 on a processor without it: avx512_vectors.h replaces the instructions.

They compute what the real ones do, so tests of kernels and of whole models run on them, slowly.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from paged_serve.workers.kernels.cpu import library as cpu

from .build import CSRC, HERE, ROOT, SETUP, TILES, build

FEATURES = {
    "avx512fma": ("AVX512F", "AVX512VNNI"),
    "avx512": ("AVX512F", "AVX512VNNI", "AVX512BF16"),
    "amx": ("AVX512F", "AVX512VNNI", "AVX512BF16"),
}
SUPPORTED = "-D__builtin_cpu_supports(feature)=1"
WITHOUT_VBMI = '-D__builtin_cpu_supports(feature)=__builtin_strcmp(feature, "avx512vbmi")'
REPLACED = (  # in sources: (file, expression, replacement, how often)
    (
        "isa/avx512.h",
        r'asm\("(\w+) %2, %1, %0" : "\+v"\((\w+)\) : "v"\((\w+)\), "v"\((\w+)\)\)',
        r"\2 = emulated::\1(\2, \3, \4)",
        3,
    ),
    ("isa/avx512.h", r'asm\("" : "\+v"\(x\)\)', 'asm("" : "+m"(x))', 2),  # no register holds 64 bytes
    ("fp8/values.h", r'gnu::target\("avx512vbmi"\)', "gnu::unused", 1),
)
OPTIONS = ("-q", "-p", "no:cacheprovider", "--timeout", "3000")


def build_for_avx512(isa: str, folder: Path) -> None:
    """Build the library for `isa` into `folder`, with those that it is compared with.

    The portable one, which is asked what the machine runs, answers with AVX512, or, where an emulator says so, AMX.
    """
    csrc, features = folder / "csrc", folder / "features.h"
    copy_sources(csrc)
    features.write_text("".join(f"#define __{name}__ 1\n" for name in FEATURES[isa]))
    supported = WITHOUT_VBMI if isa == "avx512fma" else SUPPORTED  # both kinds exist
    flags = [*SETUP["FLAGS_BY_ISA"]["avx2"], *(TILES if isa == "amx" else ()), "-O1", supported]
    first, last = (HERE / "avx512_vectors.h", features), (features,)  # gcc forgets them after the compiled header
    build(folder / f"_cpu_{isa}.so", sorted(csrc.rglob("*.cpp")), flags, csrc=csrc, first=first, last=last)
    (folder / "_cpu_avx2.so").symlink_to(cpu.library_path("avx2"))
    described = [CSRC / "library.cpp"]
    build(folder / "_cpu_portable.so", described, [SUPPORTED], missing=cpu.library_path("portable"))


def run_tests(folder: Path, isa: str, *arguments: str) -> None:
    """Run pytest with `arguments` on the library for `isa` in `folder`. Fails if a test does."""
    environment = {**os.environ, "PAGED_SERVE_TEST_KERNELS": str(folder)}
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--cpu-isa", isa, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def copy_sources(folder: Path) -> None:
    """Copy csrc/cpu to `folder`, with functions in the place of inline assembly."""
    shutil.copytree(CSRC, folder)
    for name, expression, replacement, times in REPLACED:
        file = folder / name
        text, found = re.subn(expression, replacement, file.read_text())
        assert found == times, (name, expression, found)
        file.write_text(text)
