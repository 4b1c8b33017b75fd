"""Like test_random_workloads.py, with latent attention: every rank holds the same cached vectors."""

import pytest

from .random_workload import draw_latent_workload
from .test_random_workloads import load, run_slice, run_workload

__all__ = ["load"]  # the fixture

SLICE = (551,)  # two ranks or four, both kinds of faults, and shared prefixes


@pytest.mark.long_in_software  # each seed draws its instruction set, the portable one among them
def test_a_slice_of_workloads_with_latent_attention_gives_each_request_the_same_bytes(load):
    total = run_slice(load, SLICE, draw_latent_workload)
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_workloads_with_latent_attention_give_each_request_the_same_bytes(load):
    for seed in range(500):
        run_workload(load, seed, draw=draw_latent_workload)
