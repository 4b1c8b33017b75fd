"""The amx library as it was compiled, with AMX's instructions emulated, has the bits of the other libraries.

Tests of tile order compare it with the definition, those of instruction sets with libraries that multiply by FMA.
"""

import os
import platform
import shutil
import subprocess

import pytest
from tiles.bench_tiles import build

from paged_serve.workers.kernels.cpu import library as cpu

from ..emulation.amx import DOTS, EmulatedAmx, is_emulated
from ..emulation.avx512 import OPTIONS
from ..emulation.build import HERE

ORDERS = ("order_of_sums/test_tile_order.py", "order_of_sums/test_tile_attention.py")
# Each multiplies for seconds what the others multiply, too; the nightly subject "orders" has them.
LONG = (
    "test_rows_that_no_cache_holds",
    "test_an_infinity_or_nan",
    "test_the_bits_do_not_depend_on_the_chunk and 290",
    "test_a_row_has_the_same_bits and float16",
    "test_int8_has_the_same_bits_in_both_orders and shape11",  # 8,192 inputs
)
SUBJECTS = {
    "orders": ["order_of_sums"],
    "kernels": ["kernels"],
    "models": ["models", "layers"],
    "encoders": ["pooling"],
    "forms": ["quantization", "kv", "gguf"],
    "ranks": ["distributed", "invariance"],
    "steps": ["runner", "batch", "sampling", "process"],
    "recurrent": ["recurrent"],
    "speculation": ["speculation", "tier"],
    "adapters": ["adapters"],
}
WITHOUT_KERNELS = ["checkpoint", "emulation", "tiny_models"]
MISUSES = {
    "no permission": "without the system's permission",
    "no configuration": "without a configuration",
    "released": "without a configuration",
    "a tile missing": "a tile that is not configured",
    "a tall tile": "more than 16 rows",
    "a start row": "a start row",
    "other rows": "other rows than its first factor",
    "other columns": "other columns than its second factor",
    "other lengths": "other lengths",
}
needed = ("g++", "objdump")
pytestmark = [
    pytest.mark.skipif(is_emulated, reason="this process is emulated already"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="another machine's instructions"),
    pytest.mark.skipif("amx" in cpu.runnable_isas(), reason="its tiles are real, and all tests use them"),
    pytest.mark.skipif(not all(map(shutil.which, needed)), reason="needs g++ and binutils"),
    pytest.mark.skipif("avx2" not in cpu.runnable_isas(), reason="needs the kernels, built, and AVX2"),
    pytest.mark.timeout(3600),
]


def emulated(folder, *, is_whole):
    if "avx512fma" in cpu.runnable_isas() and not cpu.library_path("amx").exists():
        pytest.skip("the amx library is not built: python setup.py build_ext --inplace")
    return EmulatedAmx(folder, is_whole=is_whole)


@pytest.fixture(scope="module")
def amx(tmp_path_factory):
    return emulated(tmp_path_factory.mktemp("amx"), is_whole=False)


@pytest.fixture(scope="module")
def whole_amx(tmp_path_factory):
    return emulated(tmp_path_factory.mktemp("whole_amx"), is_whole=True)


def test_products_and_attention_in_tile_order_have_the_bits_of_their_definition(amx):
    others = f"not ({') and not ('.join(LONG)})"
    counts = amx.run_tests(*(f"tests/workers/{file}" for file in ORDERS), "-m", "not nightly", "-k", others)
    assert all(counts[name] > 1000 for name in DOTS), counts


def test_each_room_of_the_workers_tests_is_among_the_subjects():
    rooms = {folder.name for folder in HERE.parent.iterdir() if (folder / "__init__.py").exists()}
    assert rooms == {*WITHOUT_KERNELS, *(room for subject in SUBJECTS.values() for room in subject)}


@pytest.mark.nightly
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_tests_of_kernels_and_whole_models_pass(whole_amx, subject):
    counts = whole_amx.run_tests(*(f"tests/workers/{place}" for place in SUBJECTS[subject]), "-m", "not nightly")
    assert counts["tdpbf16ps"] > 1000, counts


@pytest.fixture(scope="module")
def checkout(amx):
    if amx.isa != "amx":
        pytest.skip("servers start with the library for AMX, which also needs AVX-512")
    return amx.checkout()


@pytest.mark.nightly
@pytest.mark.parametrize("room", ["answers", "models", "offline", "recovery"])
def test_servers_pass_their_tests(amx, checkout, room):
    assert "amx: the best that this machine runs" in amx.run("paged_serve", "doctor", checkout=checkout).stdout
    tests = f"tests/end_to_end/{room}", "-m", "not nightly"
    done = amx.run("pytest", *OPTIONS, *tests, checkout=checkout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.nightly
def test_each_loop_of_the_benchmark_of_tiles_multiplies_or_loads(amx, tmp_path):
    build(tmp_path / "loops")
    command = [tmp_path / "loops", str(min(os.sched_getaffinity(0)))]
    lines = subprocess.run(
        command, env=amx.environment(), check=True, capture_output=True, text=True
    ).stdout.splitlines()
    loops = [line.split("\t") for line in lines]
    assert {unit for _, unit, _ in loops} == {"dots", "loads"}
    assert len({name for name, _, _ in loops}) == len(loops) > 20
    assert all(float(ns) > 0 for _, _, ns in loops)


@pytest.fixture(scope="module")
def misuse(amx, tmp_path_factory):
    """Runs amx_misuse.cpp: the exit status and what the emulator reports."""
    program = tmp_path_factory.mktemp("misuse") / "misuse"
    flags = ["-std=c++20", "-O1", "-mamx-tile", "-mamx-int8"]
    subprocess.run(["g++", *flags, str(HERE / "amx_misuse.cpp"), "-o", str(program)], check=True)

    def run(kind):
        amx.report.unlink(missing_ok=True)
        done = subprocess.run([program, kind], env=amx.environment(), check=False)
        return done.returncode, amx.report.read_text()

    return run


@pytest.mark.parametrize("kind", MISUSES)
def test_the_emulator_ends_a_program_that_a_processor_would_end(misuse, kind):
    status, report = misuse(kind)
    assert status < 0
    assert MISUSES[kind] in report


def test_the_emulator_multiplies_for_a_program_that_uses_tiles_as_it_should(misuse):
    status, report = misuse("none")
    assert status == 0
    assert "tdpbsud 1\n" in report
