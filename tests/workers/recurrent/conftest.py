"""A pool of every instruction set."""

import pytest

from paged_serve.workers.kernels.cpu import library as cpu

from ..emulation.emulated import is_emulated, load_emulated


@pytest.fixture(scope="module")
def isa_pools():
    """A pool of one thread for each instruction set that is built and runs here, and for one that is emulated."""
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    libraries = [cpu.load_library(isa) for isa in cpu.runnable_isas()]
    others = [load_emulated()] if is_emulated else []
    pools = [cpu.Pool(library, [-1], summation="dot") for library in (*libraries, *others)]
    yield pools
    for pool in pools:
        pool.close()
    for library in others:
        library.close()
