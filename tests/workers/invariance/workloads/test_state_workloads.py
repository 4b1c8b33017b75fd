"""Like test_random_workloads.py, with a model whose layers mostly keep states: rows start from others' checkpoints."""

import pytest

from .random_workload import draw_state_workload
from .test_random_workloads import load, run_slice, run_workload

__all__ = ["load"]  # the fixture

SLICE = (7, 551)  # 7: a request is aborted; 551: two ranks and a preemption


def test_a_slice_of_workloads_with_states_gives_each_request_the_same_bytes(load):
    total = run_slice(load, SLICE, draw_state_workload, "aborts")
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_workloads_with_states_give_each_request_the_same_bytes(load):
    for seed in range(300):
        run_workload(load, seed, draw=draw_state_workload)
