"""The threads of a pool: every item of every call is computed once, and no call waits for a thread that has no core."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu

from ..elementwise_calls import silu_mul

CALLS = 10_000
MANY_THREADS = 24


@pytest.fixture
def pool_of(cpu_library):
    made = []

    def make(cpus, **options):
        made.append(cpu.Pool(cpu_library, cpus, summation="dot", **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.mark.long_in_software  # every library has the same pool
@pytest.mark.parametrize("spin_us", [0, 50])
def test_callers_that_share_more_threads_than_cores_get_all_their_items(pool_of, spin_us):
    pool, alone = pool_of([-1] * MANY_THREADS, spin_us=spin_us), pool_of([-1])
    inputs = [torch.randn(rows, 1024, generator=torch.Generator().manual_seed(rows)) for rows in (97, 130, 211)]
    expected = [silu_mul(alone, x) for x in inputs]

    def call_often(index):
        out = torch.empty_like(expected[index])
        for _ in range(150):
            out.fill_(torch.nan)
            silu_mul(pool, inputs[index], out=out)
            assert torch.equal(out, expected[index])

    with ThreadPoolExecutor(len(inputs)) as callers:
        list(callers.map(call_often, range(len(inputs))))


@pytest.mark.timeout(30)
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux")
def test_no_call_waits_for_a_thread_whose_core_is_taken(pool_of):
    """Each of these calls took milliseconds when it waited for all threads: a minute and more together."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    occupant = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cores[0]}}})\nwhile 1: 0"]
    )
    try:
        before = set(os.listdir("/proc/self/task"))
        pool = pool_of([-1, cores[0]], spin_us=0)
        for thread in set(os.listdir("/proc/self/task")) - before:
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        for _ in range(CALLS):
            pool.library.empty_runs(pool.handle, 1)
    finally:
        occupant.kill()
        occupant.wait()
