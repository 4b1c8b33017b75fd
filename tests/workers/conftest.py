"""One thread for all: tiny models only lose by sharing, and tests run beside each other. The CPU kernels' libraries."""

import os
from pathlib import Path

import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu import packing

from .emulation.emulated import load_emulated
from .invariance.row_variant import row_variant_torch

EMULATED = "emulated"

if folder := os.environ.get("PAGED_SERVE_TEST_KERNELS"):  # scripts/sanitize_kernels.py
    cpu.FOLDER = Path(folder)
emulated = "PAGED_SERVE_TEST_DRIVER" in os.environ  # test_neon.py
if folder or emulated:
    packing.allocate = lambda shape, dtype: torch.empty(shape, dtype=dtype)  # on the heap, where reads past it are seen


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def row_variant():
    """For the rest of the module: what keeps its bits here keeps them on every processor."""
    with row_variant_torch():
        yield


def pytest_generate_tests(metafunc):
    """--cpu-isa decides what `cpu_library` and `chosen_isa` are."""
    asked, runnable = metafunc.config.getoption("cpu_isa"), cpu.runnable_isas()
    if "cpu_library" in metafunc.fixturenames:
        isas = [EMULATED] if emulated else [asked] if asked in runnable else runnable or [None]
        metafunc.parametrize("cpu_library", isas, indirect=True, scope="module")
    if "chosen_isa" in metafunc.fixturenames and asked is not None:
        isas = [asked] if asked in runnable else runnable
        metafunc.parametrize("chosen_isa", isas, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what differs with --cpu-isa, so that check.py need not repeat the rest for every instruction set."""
    slow = {"portable"} - set(cpu.runnable_isas()[:1])  # its FMA is software; test_isa_bits.py holds it to the others
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("cpu_library") in slow and item.get_closest_marker("long_in_software"):
            item.add_marker("nightly")
        if "chosen_isa" in getattr(item, "fixturenames", ()) and parameters.get("pool") != "torch":
            item.add_marker("chosen_isa")


@pytest.fixture(scope="session")
def chosen_isa(request):
    """What --cpu-isa names, or each in turn if that is `all`; None without it."""
    return getattr(request, "param", None)


@pytest.fixture(scope="module")
def cpu_library(request):
    """Every built library in turn; or one that runs under an emulator beside this machine's best."""
    if request.param == EMULATED:
        library = load_emulated()
        yield library
        library.driver.close()
        return
    if request.param is None:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    yield cpu.load_library(request.param)


@pytest.fixture(scope="module")
def cpu_pools(cpu_library):
    """One thread, and three: more than there are cores, so that every share of the work is tried."""
    made = [cpu.Pool(cpu_library, [-1] * threads) for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


@pytest.fixture(scope="module", params=["dot", "tile"])
def pools_of_each_order(cpu_library, request):
    """The same in each order of summation."""
    made = [cpu.Pool(cpu_library, [-1] * threads, summation=request.param) for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def make_pool(chosen_isa):
    """Makes pools of some number of threads; None if the kernels are not built. They need not fit the cores."""
    made = []

    def make(threads=1):
        library = cpu.best_library(chosen_isa)
        if library is None:
            return None
        made.append(cpu.Pool(library, [-1] * threads))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def pools(make_pool):
    """The ways to compute: None stands for plain torch, then the kernels if they are built."""
    pool = make_pool()
    return [None] if pool is None else [None, pool]


@pytest.fixture(scope="session", params=["torch", "kernels"])
def pool(request, pools):
    """Each of the ways to compute, a test of its own."""
    if request.param == "kernels" and len(pools) == 1:
        pytest.skip("the kernels are not built")
    return pools[request.param == "kernels"]
