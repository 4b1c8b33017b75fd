"""The NEON kernels under qemu: every call of the kernel tests has the same bits as on this machine."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from check_spills import excessive, spills

from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.structs.kernels import KERNELS

from ..emulation.build import CSRC, ROOT, SETUP, build

TESTED = Path(__file__).parents[1]
EMULATION = TESTED / "emulation"
CROSS, QEMU, ARM_ROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
PRODUCTS = ("gemm", "quantized_gemm", "blocks", "experts", "fp8", "lora", "mxfp4", "segments", "unpack_codes")
ATTENTION = ("attention", "latent", "indexer")
TESTS_OF_KERNELS = (
    *(f"products/test_cpu_{name}" for name in PRODUCTS),
    *(f"attention/test_cpu_{name}" for name in ATTENTION),
    *(f"test_cpu_{name}" for name in ("elementwise", "loading", "sampling", "program")),
)
RECURRENT = tuple(f"recurrent/test_{name}.py" for name in ("causal_conv", "gated_norm", "scans"))
TESTS = (*(f"kernels/{name}.py" for name in TESTS_OF_KERNELS), *RECURRENT, "order_of_sums/test_tile_order.py")
NOT_OF_KERNELS = "unknown_instruction or best_library or other_structs or accumulators or faster_of_two"
NOT_OF_KERNELS += " or another_order or every_isa or every_instruction_set"
WITH_NIGHTLY = "kernels/products/test_cpu_blocks.py"  # experts of formats with grids
IN_PAIRS = ("attention", "latent", "lora", "tile_order")  # of parameters: all would take hours
READS_FILES = {"read_file", "read_parts"}  # by descriptors of this process
needed = (CROSS, QEMU, "aarch64-linux-gnu-objdump", "g++")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="another machine's kernels are compared with x86's"),
    pytest.mark.skipif(not all(map(shutil.which, needed)), reason="apt install g++ g++-aarch64-linux-gnu qemu-user"),
    pytest.mark.skipif(
        not cpu.runnable_isas(), reason="the kernels are not built: python setup.py build_ext --inplace"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the driver, built for the emulated machine, and the heap, built for this machine."""
    built = tmp_path_factory.mktemp("neon")
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-pthread"]
    heap = ["-shared", "-fPIC", "-fvisibility=hidden", EMULATION / "shared_heap.cpp", "-o", built / "shared_heap.so"]
    subprocess.run([CROSS, *flags, EMULATION / "driver.cpp", "-o", built / "driver"], check=True)
    subprocess.run(["g++", *flags, *heap], check=True)
    return built


@pytest.fixture(scope="module", params=["neon", "neon_dotprod"])
def library(request, folder):
    """The NEON library, built as setup.py builds it on such a machine."""
    path, flags = folder / f"_cpu_{request.param}.so", SETUP["FLAGS_BY_MACHINE"]["aarch64"][request.param]
    build(path, sorted(CSRC.rglob("*.cpp")), flags, compiler=CROSS)
    return path


@pytest.mark.parametrize("subject", TESTS)
def test_every_call_has_the_bits_of_this_machine(folder, library, subject):
    environment = {
        **os.environ,
        "LD_PRELOAD": str(folder / "shared_heap.so"),
        "PAGED_SERVE_TEST_DRIVER": f"{QEMU} -L {ARM_ROOT} {folder / 'driver'}",
        "PAGED_SERVE_TEST_EMULATED": str(library),
        "PAGED_SERVE_TEST_COMPARED": str(library.with_name(f"{library.stem}-{subject.replace('/', '-')}.compared")),
        "PYTHONMALLOC": "malloc",  # so that all memory of Python is in the heap
    }
    marks = ["-m", ""] if subject == WITH_NIGHTLY else []
    products = "pairs" if subject.endswith(tuple(f"_{name}.py" for name in IN_PAIRS)) else "whole"
    tests = [str(TESTED / subject), *marks, "-k", f"not ({NOT_OF_KERNELS})", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1800", "--products", products, *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout, done.stdout[-400:]


def test_every_kernel_was_compared(library):
    reports = [report.read_text() for report in library.parent.glob(f"{library.stem}-*.compared")]
    if len(reports) < len(TESTS):
        pytest.skip("not all subjects were chosen")
    assert KERNELS.keys() - " ".join(reports).split() == READS_FILES


def test_no_product_keeps_its_accumulators_on_the_stack(library):
    assert excessive(spills(library)) == []
