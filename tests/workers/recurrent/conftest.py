"""A pool of every instruction set."""

import pytest

from paged_serve.workers.kernels.cpu import library as cpu


@pytest.fixture(scope="module")
def isa_pools():
    """A pool of one thread for each instruction set that is built and runs here."""
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    pools = [cpu.Pool(cpu.load_library(isa), [-1], summation="dot") for isa in cpu.runnable_isas()]
    yield pools
    for pool in pools:
        pool.close()
