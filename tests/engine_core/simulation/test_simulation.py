"""Simulations of the engine under faults, each from one seed. A failure names its seed: simulate(seed) replays it."""

import pytest

from paged_serve.engine_core.simulation.outcomes import Outcomes
from paged_serve.engine_core.simulation.scenarios.adapters import with_adapters
from paged_serve.engine_core.simulation.scenarios.scenario import draw_scenario
from paged_serve.engine_core.simulation.simulator import simulate
from paged_serve.protocol.messages.loading.startup import KVGroup

FAST = (*range(40), 55, 72)  # 55: states and a window; 72: nothing but attention chunks
# A new core too full for all resumed requests; output of a lost client reused; a NaN behind a window;
# a chunk withdrawn from its plan before its sequence leaves a tail; a victim that shares its prompt with the sequence.
RARE = (1085, 504, 287, 510, 709098)
NIGHTLY_STEPS = 1_000_000


def test_every_simulation_gives_each_request_its_output_alone():
    total, with_states = Outcomes(), Outcomes()
    for seed in (*RARE, *FAST):
        outcomes, _ = simulate(seed)
        total.add(outcomes)
        if "state" in kinds_of(seed):
            with_states.add(outcomes)
    for each in (total, with_states):
        assert min(each.tokens, each.cached_tokens, each.copies, each.preemptions, each.aborts, each.worker_deaths) > 0
    assert min(total.tokens, total.vectors, total.preemptions, total.aborts, total.worker_deaths, total.core_deaths) > 0
    assert min(total.cached_tokens, total.silent_clients, total.reused, total.nans, total.steps_behind) > 0
    assert min(total.overloads, total.expired, total.poisoned, total.crashes, total.spoiled) > 0
    assert min(total.passes, total.paused, total.broken_workers, total.halts, total.retries) > 0
    assert min(total.slow_steps, total.clock_jumps, total.duplicates, total.late_aborts) > 0
    assert total.draft_tokens > total.accepted_tokens > 0
    assert min(total.loads, total.refused, total.load_crashes) > 0
    assert min(total.stores, total.tier_loads, total.torn_blocks) > 0


def test_a_token_that_cannot_be_sampled_ends_its_request_and_nothing_else():
    total = Outcomes()
    for seed in (9, 10, 11, 5_000_284):  # the last publishes a block that a step in flight overwrites
        total.add(simulate(seed, fails=True)[0])
    assert min(total.failed, total.resets, total.cached_tokens, total.accepted_tokens, total.worker_deaths) > 0


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_million_steps_with_tokens_that_cannot_be_sampled_hold_every_invariant():
    total, seed = Outcomes(), 5_000_000
    while total.steps < NIGHTLY_STEPS:
        total.add(simulate(seed, fails=True)[0])
        seed += 1
    print(total)


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


def kind_of(group: KVGroup) -> str:
    if group.is_state:
        return "state"
    return "attention chunk" if group.attention_chunk else "window" if group.window else "full"


def kinds_of(seed: int) -> set[str]:
    """The kinds of KV groups that the model of a simulation has."""
    return {kind_of(group) for group in draw_scenario(seed).facts.kv_groups}


def test_attention_chunks_are_drawn_alone_and_beside_each_other_kind():
    drawn = [kinds_of(seed) for seed in FAST]
    assert all(any({"attention chunk", *others} == kinds for kinds in drawn) for others in ((), ("full",)))
    assert {"attention chunk", "window", "full"} in drawn


def test_states_are_drawn_alone_and_beside_each_other_kind():
    drawn = [kinds_of(seed) for seed in FAST]
    assert all(any({"state", *others} == kinds for kinds in drawn) for others in ((), ("full",), ("window",)))
    assert {"state", "window", "full"} in drawn
    assert any({"state", "attention chunk"} <= kinds for kinds in drawn)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_steps_of_states_beside_other_kv_groups_hold_every_invariant():
    total, seed = Outcomes(), 3_000_000
    while total.steps < NIGHTLY_STEPS:
        if "state" in kinds_of(seed):
            total.add(simulate(seed)[0])
        seed += 1
    assert min(total.cached_tokens, total.preemptions, total.nans, total.worker_deaths) > 0
    print(total)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_steps_of_attention_chunks_beside_other_kv_groups_hold_every_invariant():
    total, seed = Outcomes(), 2_000_000
    while total.steps < NIGHTLY_STEPS:
        if len(kinds := kinds_of(seed)) > 1 and "attention chunk" in kinds:
            total.add(simulate(seed)[0])
        seed += 1
    assert min(total.cached_tokens, total.preemptions, total.nans, total.worker_deaths) > 0
    print(total)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_steps_of_lora_adapters_hold_every_invariant():
    total, seed = Outcomes(), 4_000_000
    while total.steps < NIGHTLY_STEPS:
        if with_adapters(draw_scenario(seed)).adapters:
            total.add(simulate(seed)[0])
        seed += 1
    assert min(total.loads, total.refused, total.load_crashes, total.worker_deaths, total.core_deaths) > 0
    print(total)
