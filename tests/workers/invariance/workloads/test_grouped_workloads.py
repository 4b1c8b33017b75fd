"""Like test_random_workloads.py, with a model with several KV groups: core and runner free blocks behind windows."""

import pytest

from .random_workload import draw_grouped_workload
from .test_random_workloads import load, run_slice, run_workload

__all__ = ["load"]  # the fixture

SLICE = (551,)  # two ranks, both kinds of faults, and shared prefixes


def test_a_slice_of_grouped_workloads_gives_each_request_the_same_bytes(load):
    run_slice(load, SLICE, draw_grouped_workload)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_many_grouped_workloads_give_each_request_the_same_bytes(load):
    for seed in range(200):
        run_workload(load, seed, draw=draw_grouped_workload)
