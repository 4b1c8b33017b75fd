"""Simulations of the engine under faults, each from one seed. A failure names its seed: simulate(seed) replays it."""

import pytest

from paged_serve.engine_core.simulation.outcomes import Outcomes
from paged_serve.engine_core.simulation.simulator import simulate

FAST = range(120)
# A new core too full for all resumed requests; output of a lost client reused; a NaN behind a window.
RARE = (667, 504, 287)
NIGHTLY_STEPS = 1_000_000


def test_every_simulation_gives_each_request_its_output_alone():
    total = Outcomes()
    for seed in (*RARE, *FAST):
        total.add(simulate(seed)[0])
    assert min(total.tokens, total.vectors, total.preemptions, total.aborts, total.worker_deaths, total.core_deaths) > 0
    assert min(total.cached_tokens, total.silent_clients, total.reused, total.nans, total.steps_behind) > 0
    assert min(total.overloads, total.expired, total.poisoned, total.crashes, total.spoiled) > 0
    assert min(total.passes, total.paused, total.broken_workers, total.halts, total.retries) > 0
    assert min(total.slow_steps, total.clock_jumps, total.duplicates, total.late_aborts) > 0


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_the_same_seed_leaves_the_same_trace(seed):
    assert simulate(seed) == simulate(seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_million_steps_hold_every_invariant():
    total, seed = Outcomes(), 1_000_000
    while total.steps < NIGHTLY_STEPS:
        total.add(simulate(seed)[0])
        seed += 1
    print(total)
