"""One thread for all: tiny models only lose by sharing, and tests run beside each other. The CPU kernels' libraries."""

import os
from pathlib import Path

import pytest
import torch

from paged_serve.workers.kernels import cpu, packing

if folder := os.environ.get("PAGED_SERVE_TEST_KERNELS"):  # scripts/sanitize_kernels.py
    cpu.FOLDER = Path(folder)
    packing.allocate = lambda shape, dtype: torch.empty(shape, dtype=dtype)  # on the heap, where reads past it are seen


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=cpu.runnable_isas() or [None])
def cpu_library(request):
    """Every built library in turn."""
    if request.param is None:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    return cpu.load_library(request.param)


@pytest.fixture(scope="module")
def cpu_pools(cpu_library):
    """One thread, and three: more than there are cores, so that every share of the work is tried."""
    made = [cpu.Pool(cpu_library, [-1] * threads) for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def make_pool():
    """Makes pools of some number of threads; None if the kernels are not built. They need not fit the cores."""
    made = []

    def make(threads=1):
        library = cpu.best_library()
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
