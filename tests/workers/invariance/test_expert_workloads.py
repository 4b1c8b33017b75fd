"""Like test_random_workloads.py, with a mixture of experts: neighbours decide how many rows an expert has."""

from collections import Counter

import pytest

from .random_workload import draw_expert_workload
from .test_random_workloads import load, run_workload

__all__ = ["load"]  # the fixture

SLICE = (0, 1, 2, 4, 5)


def test_a_slice_of_workloads_with_experts_gives_each_request_the_same_bytes(load):
    total = sum((run_workload(load, seed, draw=draw_expert_workload) for seed in SLICE), Counter[str]())
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"
    for event in ("cached tokens", "preemptions", "restarts"):
        assert total[event], f"there were no {event}, so the slice does not test them"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_workloads_with_experts_give_each_request_the_same_bytes(load):
    for seed in range(1000):
        run_workload(load, seed, draw=draw_expert_workload)
