"""Time limits of steps, learned from the steps of this machine."""

import random

import pytest

from paged_serve.engine_core.process.step_time_limits import (
    FACTOR,
    FLOOR_S,
    MAX_STEPS_COUNTED,
    MIN_STEPS,
    QUANTILE,
    RATIO,
    STEPS_ON_TIME,
    Histogram,
    StepTimeLimits,
)


def learned(num_tokens: int, seconds: float, count: int = MIN_STEPS) -> StepTimeLimits:
    times = StepTimeLimits(longest_s=300.0)
    for _ in range(count):
        times.add(num_tokens, seconds)
    return times


def test_without_observations_the_configured_limit_holds():
    assert StepTimeLimits(300.0).allowed_s(8) == 300.0
    assert learned(8, 0.01, count=MIN_STEPS - 1).allowed_s(8) == 300.0


def test_fast_steps_have_a_limit_of_one_second():
    assert learned(8, 0.001).allowed_s(8) == FLOOR_S


def test_slow_steps_have_a_limit_of_eight_times_their_duration():
    assert FACTOR * 2.0 <= learned(8, 2.0).allowed_s(8) <= FACTOR * 2.0 * RATIO


def test_no_limit_exceeds_the_configured_one():
    assert learned(8, 200.0).allowed_s(8) == 300.0


def test_the_limit_grows_in_proportion_to_the_step():
    times = learned(8, 2.0)
    assert times.allowed_s(15) == times.allowed_s(8)
    assert times.allowed_s(16) == 2 * times.allowed_s(8)
    assert times.allowed_s(64) == 8 * times.allowed_s(8)


def test_a_smaller_step_keeps_the_limit_of_the_smallest_known_one():
    times = learned(64, 2.0)
    assert times.allowed_s(1) == times.allowed_s(64)


def test_each_class_of_steps_has_its_own_limit():
    times = learned(1, 0.001)
    for _ in range(MIN_STEPS):
        times.add(2048, 3.0)
    assert times.allowed_s(1) == FLOOR_S
    assert times.allowed_s(2048) >= FACTOR * 3.0


def test_one_slow_step_in_a_hundred_raises_the_limit_and_one_in_two_thousand_does_not():
    times = learned(8, 1.0, count=2000)
    usual_s = times.usual_s(8)
    times.add(8, 100.0)
    assert times.usual_s(8) == usual_s
    for _ in range(20):
        times.add(8, 100.0)
    assert times.usual_s(8) >= 100.0


def test_each_late_step_doubles_the_limit_up_to_the_configured_one():
    times, allowed = learned(8, 0.001), []
    for _ in range(12):
        allowed.append(times.allowed_s(8))
        times.was_late()
    assert allowed == [min(300.0, 2.0**n) for n in range(12)]


@pytest.mark.parametrize("seed", range(5))
def test_the_quantile_is_right_within_a_bucket(seed):
    rng, histogram = random.Random(seed), Histogram()
    durations = sorted(rng.lognormvariate(-5, 2) for _ in range(rng.randrange(1, 5000)))
    for seconds in durations:
        histogram.add(seconds)
    exact = durations[min(len(durations) - 1, int(QUANTILE * len(durations)))]
    assert histogram.quantile_s(QUANTILE) >= min(exact, durations[-1]) / RATIO
    assert histogram.quantile_s(1.0) >= durations[-1] * 0.999
    assert histogram.quantile_s(QUANTILE) <= max(1e-4, durations[-1]) * RATIO


def test_old_observations_count_less():
    times = learned(8, 10.0)
    for _ in range(20 * MAX_STEPS_COUNTED):
        times.add(8, 0.001)
    assert times.allowed_s(8) == FLOOR_S


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_every_duration_falls_into_a_bucket(seconds):
    histogram = Histogram()
    histogram.add(seconds)
    assert histogram.quantile_s(QUANTILE) > 0


def test_the_limit_falls_again_after_a_thousand_consecutive_steps_on_time():
    times = learned(8, 0.001)
    for _ in range(3):
        times.was_late()
    for _ in range(STEPS_ON_TIME - 1):
        times.add(8, 0.001)
    times.was_late()
    assert times.patience == 16.0, "one late step begins the count anew"
    for _ in range(2 * STEPS_ON_TIME):
        times.add(8, 0.001)
    assert times.patience == 4.0
    for _ in range(9 * STEPS_ON_TIME):
        times.add(8, 0.001)
    assert times.patience == 1.0
