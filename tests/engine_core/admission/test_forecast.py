"""Predictions under overload compared with the simulation: they cannot be exact, so their errors have bounds.

Everything runs in virtual time, so these figures are the same on every machine.
"""

import statistics

import pytest

from paged_serve.engine_core.admission.forecast import StepPace
from paged_serve.engine_core.simulation.overload import Overload, Source, StepTime
from paged_serve.protocol.messages.engine_core import RejectReason


def errors(world, tenant=None, after_s=5.0, at_least_s=0.2):
    """The relative error of each served request: (forecast - wait) / wait."""
    found = [
        (asked.forecast_s - asked.first_token_s) / asked.first_token_s
        for asked in world.sent.values()
        if asked.at_s > after_s and asked.first_token_s is not None and asked.first_token_s > at_least_s
        if tenant is None or asked.source.tenant == tenant
    ]
    assert len(found) > 150
    return found


def median_error(found):
    return statistics.median(map(abs, found))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize(
    "source",
    [Source("", 80), Source("", 80, prompt=(400, 800), allowed=(20, 60)), Source("", 80, prompt=(8, 20))],
    ids=["mixed", "prompts", "outputs"],
)
def test_the_wait_in_a_flood_is_predicted(seed, source):
    world = Overload(seed, (source,)).run(40)
    found = errors(world)
    assert median_error(found) < 0.15
    assert abs(statistics.median(found)) < 0.15


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_wait_of_each_of_several_tenants_is_predicted(seed):
    sources = (Source("a", 80), Source("b", 20, weight=2.0), Source("c", 30))
    world = Overload(seed, sources).run(60)
    for source in sources:
        assert median_error(errors(world, source.tenant)) < 0.25, source.tenant


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_time_limits_are_met_or_refused_at_once(seed):
    """Accepted requests have their first token in time; very few expire."""
    world = Overload(seed, (Source("", 80, ttl_s=2.0),)).run(40)
    refused, expired = world.rejected(RejectReason.OVERLOADED), world.rejected(RejectReason.EXPIRED)
    served = [asked for asked in world.sent.values() if asked.first_token_s is not None]
    assert len(served) > 800  # as many as without a limit
    assert max(asked.first_token_s for asked in served) < 2.0 + 0.5  # a request that runs at its deadline continues
    assert len(expired) < 0.2 * len(served)
    assert max(asked.rejected_s for asked in refused) <= 0  # within a step the clock still shows its start
    assert all(asked.rejected.retry_after_s > 0 for asked in refused)


def test_retry_after_is_when_the_present_queue_has_been_served():
    world = Overload(5, (Source("", 80),)).run(40)
    waits = [asked.first_token_s for asked in world.sent.values() if asked.first_token_s and asked.at_s > 10]
    predicted = [asked.rejected.retry_after_s for asked in world.rejected(RejectReason.OVERLOADED) if asked.at_s > 10]
    assert statistics.median(predicted) == pytest.approx(statistics.median(waits), rel=0.2)


def test_an_idle_engine_predicts_the_time_of_the_prompt_alone():
    world = Overload(1, (Source("", 1),)).run(60)
    [error] = [statistics.median((a.forecast_s - a.first_token_s) for a in world.sent.values() if a.at_s > 10)]
    assert abs(error) < 0.05


def test_a_pace_is_learned_from_steps_of_any_kind():
    time, pace = StepTime(), StepPace()
    for step in range(100):
        pace.observe(step % 7 * 50, 10 + step % 5, 10 + step % 5, time.of(step % 7 * 50, 10 + step % 5))
    prompt_s, output_s = pace.prices(64)
    assert prompt_s == pytest.approx(time.prompt_token_s, rel=0.05)
    assert 64 * output_s == pytest.approx(time.of(0, 64), rel=0.2)


def test_a_pace_learned_from_equal_steps_is_right_for_such_steps():
    pace = StepPace()
    assert pace.prices(8) == (0.0, 0.0)
    for _ in range(200):
        pace.observe(0, 8, 8, 0.04)
    assert 8 * pace.prices(8)[1] == pytest.approx(0.04, rel=0.01)
