"""Like test_random_workloads.py, with a model whose layers mostly keep states: rows start from others' checkpoints."""

from collections import Counter

import pytest

from .random_workload import draw_state_workload
from .test_random_workloads import load, run_workload

__all__ = ["load"]  # the fixture

SLICE = (2, 5, 18, 31)


def test_a_slice_of_workloads_with_states_gives_each_request_the_same_bytes(load):
    total = sum((run_workload(load, seed, draw=draw_state_workload) for seed in SLICE), Counter[str]())
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"
    for event in ("cached tokens", "preemptions", "restarts", "aborts"):
        assert total[event], f"there were no {event}, so the slice does not test them"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_workloads_with_states_give_each_request_the_same_bytes(load):
    for seed in range(300):
        run_workload(load, seed, draw=draw_state_workload)
