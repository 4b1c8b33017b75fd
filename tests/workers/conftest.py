"""One thread for all: tiny models only lose by sharing, and tests run beside each other. The CPU kernels' libraries."""

import pytest
import torch

from paged_serve.workers.kernels import cpu


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
