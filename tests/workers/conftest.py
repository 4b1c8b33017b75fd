"""Fixtures of CPU kernels."""

import os
from pathlib import Path

import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu import loading, packing, unpacking

from .emulation.amx import is_emulated as has_emulated_tiles
from .emulation.emulated import is_emulated, load_emulated
from .invariance.row_variant import row_variant_torch

EMULATED = "emulated"
WITHOUT_KERNELS = ("torch", "torch row by row", "numpy", "device")  # values of parameters

if folder := os.environ.get("PAGED_SERVE_TEST_KERNELS"):  # scripts/faults/sanitize_kernels.py
    cpu.FOLDER = Path(folder)
if has_emulated_tiles:  # test_amx.py: the faster order, also beside AVX2's vectors
    cpu.summation_of = lambda library, summation="auto": "tile" if summation == "auto" else summation
if folder or is_emulated:
    on_heap = lambda shape, dtype: torch.empty(shape, dtype=dtype)  # where overreads are detected  # noqa: E731
    packing.allocate = loading.allocate = unpacking.allocate = on_heap


@pytest.fixture(scope="module")
def row_variant():
    """Makes torch row-variant for the rest of the module, so that results that keep their bits do so on every CPU."""
    with row_variant_torch():
        yield


def pytest_generate_tests(metafunc):
    """Parametrize `cpu_library` and `chosen_isa` by --cpu-isa."""
    asked, runnable = metafunc.config.getoption("cpu_isa"), cpu.runnable_isas()
    if "cpu_library" in metafunc.fixturenames:
        isas = [EMULATED] if is_emulated else [asked] if asked in runnable else runnable or [None]
        metafunc.parametrize("cpu_library", isas, indirect=True, scope="module")
    if "chosen_isa" not in metafunc.fixturenames:
        return
    if asked is not None:
        isas = [asked] if asked in runnable else runnable
        metafunc.parametrize("chosen_isa", isas, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark tests that depend on --cpu-isa, so that check.py need not repeat the others for every instruction set."""
    slow = {"portable"} - set(cpu.runnable_isas()[:1])  # its FMA is in software; test_isa_bits.py compares its bits
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("cpu_library") in slow and item.get_closest_marker("long_in_software"):
            item.add_marker("nightly")
        if "chosen_isa" in getattr(item, "fixturenames", ()) and not _without_kernels(item):
            item.add_marker("chosen_isa")


def _without_kernels(item):
    """Whether the test's parameters are of a way to compute that no instruction set changes."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    values = [value for param in params for value in (param if isinstance(param, tuple) else (param,))]
    return any(isinstance(value, str) and value in WITHOUT_KERNELS for value in values)


@pytest.fixture(scope="session")
def chosen_isa(request):
    """The instruction set of --cpu-isa, or each in turn for `all`; None without the option."""
    return getattr(request, "param", None)


@pytest.fixture(scope="module")
def cpu_library(request):
    """Every built library in turn; or one that runs in an emulator, compared with this machine's best."""
    if request.param == EMULATED:
        library = load_emulated()
        yield library
        library.close()
        return
    if request.param is None:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    yield cpu.load_library(request.param)


@pytest.fixture(scope="module")
def cpu_pools(cpu_library):
    """Pools of one thread and of three: more than there are cores, so that work is divided unevenly, too. In dot order,
    which not every library has by itself."""
    made = [cpu.Pool(cpu_library, [-1] * threads, summation="dot") for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


@pytest.fixture(scope="module", params=["dot", "tile"])
def pools_of_each_order(cpu_library, request):
    """The same pools for each order of summation."""
    made = [cpu.Pool(cpu_library, [-1] * threads, summation=request.param) for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def make_pool(chosen_isa, request):
    """Makes pools of a number of threads, which may exceed the cores; None if the kernels are not built."""
    made = []
    summation = request.config.getoption("summation")

    def make(threads=1):
        library = cpu.best_library(chosen_isa)
        if library is None:
            return None
        made.append(cpu.Pool(library, [-1] * threads, summation=summation))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def pools(chosen_isa, make_pool):
    """None, which means plain torch, and a pool for the kernels if they are built; only the pool of a chosen ISA."""
    pool = make_pool()
    return [pool] if chosen_isa or pool is None else [None, pool]


@pytest.fixture(scope="session", params=["torch", "kernels"])
def pool(request, pools):
    """Each of `pools` in turn."""
    if request.param == "kernels" and pools[-1] is None:
        pytest.skip("the kernels are not built")
    return pools[-1] if request.param == "kernels" else None
