"""How many drafts: never at a loss beyond the attempts' budget, and many where they pay."""

import random

import pytest

from paged_serve.engine_core.drafting.draft_policy import (
    ATTEMPT_STEPS,
    FIRST_INTERVAL,
    LAST_INTERVAL,
    LOSS,
    MAX_SAVED,
    DraftPolicy,
    expected,
    most_valuable,
    num_likely,
)
from paged_serve.engine_core.drafting.policies import policy_of
from paged_serve.engine_core.drafting.step_curve import StepCurve, size_class
from paged_serve.engine_core.requests.speculating import DraftHistory, Speculating
from paged_serve.protocol.messages.config import SpeculationConfig


def curve_of(constant, per_token, sizes=range(1, 200)):
    curve = StepCurve()
    for size in sizes:
        curve.observe(size_class(size), constant + per_token * size_class(size))
    return curve


def test_drafts_are_made_up_to_the_chance_that_pays():
    cheap, dear = curve_of(1.0, 0.001), curve_of(1.0, 0.3)
    assert most_valuable([(1.0, 0.9)], 1, cheap, 8) == [8]
    assert 1 <= most_valuable([(1.0, 0.9)], 1, dear, 8)[0] < 8
    assert most_valuable([(1.0, 0.05)], 1, dear, 8) == [0]
    assert most_valuable([(0.0, 0.9)], 1, cheap, 8) == [0], "the worker makes none"


def test_nothing_is_drafted_where_every_token_costs_the_same():
    for rows in (1, 4, 16):
        assert most_valuable([(1.0, 0.9)] * rows, rows, curve_of(0.0, 1.0), 8) == [0] * rows


def test_sixteen_rows_do_not_draft_at_the_assumed_cost_unless_almost_all_is_accepted():
    assert most_valuable([(1.0, 0.5)] * 16, 16, StepCurve(), 8) == [0] * 16
    assert most_valuable([(1.0, 0.5)], 1, StepCurve(), 8)[0] > 0


def test_a_row_with_better_drafts_gets_more():
    few, many = most_valuable([(1.0, 0.3), (1.0, 0.95)], 2, curve_of(1.0, 0.05), 8)
    assert few < many == 8


def test_the_drafts_of_a_threshold_are_the_likely_ones():
    for accepted in (0.0, 0.3, 0.5, 0.9, 1.0):
        for threshold in (0.9, 0.5, 0.1):
            count = num_likely(accepted, threshold, 8)
            assert count == sum(accepted**number >= threshold for number in range(1, 9))
    assert expected(0.5, 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert expected(1.0, 3) == 3.0


def test_a_curve_interpolates_between_sizes_and_follows_the_machine():
    curve = curve_of(2.0, 0.1, sizes=(1, 9))
    assert curve.relative(5) == pytest.approx(2.5)
    assert curve.relative(1) < curve.relative(9) < curve.relative(20)
    for _ in range(100):
        curve.observe(1, 4.2)
    assert curve.relative(1) == pytest.approx(4.2, rel=0.01)
    assert curve.relative(9) > 1.2 * 2.9, "a machine that became slower is slower for all sizes"


def test_durations_that_only_scatter_change_no_other_size():
    """One stream for hours must not distort what a step of eight is believed to cost."""
    rng, curve = random.Random(1), curve_of(1.0, 0.02, sizes=(1, 8))
    for _ in range(10_000):
        curve.observe(1, 1.02 * rng.lognormvariate(0.0, 0.3))
    assert curve.relative(8) / curve.relative(1) == pytest.approx(1.16 / 1.02, rel=0.25)


def test_sizes_are_exact_while_they_are_small():
    assert [size_class(size) for size in (1, 7, 15, 16, 17, 18, 100)] == [1, 7, 15, 16, 16, 18, 96]


def test_one_history_fades_into_the_next_and_all_stand_in_for_an_unknown_one():
    of_all = DraftHistory(offered=10.0, made=5.0, tested=4.0, accepted=3.0)
    assert DraftHistory().rates(of_all) == (0.5, 0.75)
    history = DraftHistory()
    for _ in range(50):
        history.add(8, 8, 8)
    assert min(history.rates(of_all)) > 0.95
    for _ in range(50):
        history.add(8, 8, 0)
    assert history.rates(of_all)[1] < 0.2


def test_a_history_without_any_draft_keeps_the_chance_of_acceptance():
    history, of_all = DraftHistory(), DraftHistory(1.0, 1.0, 1.0, 0.5)
    for _ in range(20_000):
        history.add(8, 0, 0)
        of_all.add(8, 0, 0)
    assert history.rates(of_all)[0] < 0.01
    assert history.rates(of_all)[1] == pytest.approx(0.5)


def test_attempts_come_less_often_until_one_succeeds():
    policy, history = DraftPolicy(8), DraftHistory()
    assert [policy.next_interval(history) for _ in range(6)] == [32, 64, 128, 256, 512, 512]
    for _ in range(20):
        policy.observe(history, 8, 8, 8)
    assert policy.wanted([history], 0) == [8]
    assert policy.next_interval(history) == FIRST_INTERVAL < LAST_INTERVAL


def test_attempts_cost_no_more_than_their_share():
    policy, spent = DraftPolicy(8), 0.0
    for size in (4, 8):
        policy.curve.observe(size, 1.0 + 0.1 * size)
    for _ in range(10_000):
        if policy.begin_attempt(DraftHistory(), 4):
            spent += ATTEMPT_STEPS * (1.8 / 1.4 - 1.0)
        policy.observe_step(4, 1.4)
    assert 0 < spent <= 10_000 * LOSS + MAX_SAVED + 1.0


def test_an_attempt_has_drafts_for_a_few_verifications():
    policy, history = DraftPolicy(8), DraftHistory()
    for _ in range(30):
        policy.observe(history, 8, 8, 0)
    assert policy.wanted([history], 0) == [0]
    assert policy.begin_attempt(history, 1)
    for _ in range(ATTEMPT_STEPS):
        assert policy.wanted([history], 0) == [4]
        policy.observe(history, 4, 4, 0)
    assert policy.wanted([history], 0) == [0]


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_fixed_number_of_drafts_is_made_however_much_it_costs(drive, adaptive):
    """No draft is right, and a step of nine tokens takes nine times as long as one of one token."""
    driver = drive(num_drafts=8, adaptive=adaptive, accuracy=0.0, max_model_len=400, num_blocks=100)
    driver.worker.step_s, driver.worker.token_s = 0.0, 1.0
    driver.add(4, max_tokens=300)
    driver.run()
    most = sum(min(8, 300 - length - 1) for length in range(1, 300))  # the last token has no draft
    verified = sum(chunk.num_drafts for plan in driver.sent for chunk in plan.chunks)
    assert verified < 100 if adaptive else verified == most


def test_there_are_no_drafts_without_a_method_that_runs_on_the_device():
    for adaptive in (True, False):
        assert policy_of(SpeculationConfig("auto", 5, adaptive), "cpu").num_drafts == 5
        assert policy_of(SpeculationConfig("auto", 5, adaptive), "cuda").num_drafts == 0
        assert policy_of(SpeculationConfig("ngram", 5, adaptive), "cuda").num_drafts == 5
        assert policy_of(SpeculationConfig("off", 5, adaptive), "cpu").num_drafts == 0


def test_bounds_move_with_each_verification():
    bounds = Speculating(10, num_granted=3)
    assert bounds.span == (9, 13)
    assert bounds.sent() == 3
    bounds.num_granted = 2
    assert (bounds.shortest, bounds.longest, bounds.span) == (11, 14, (10, 16))
    assert bounds.sent() == 2
    bounds.applied(3, 2)
    assert (bounds.base, bounds.shortest, bounds.longest) == (12, 13, 15)


def seconds_of_short_sequences(driver, num_rows, num_tokens):
    """For `num_tokens` tokens of sequences of 32; `num_rows` run at any time, and a step takes 1 + 0.2 per token."""
    driver.worker.step_s, driver.worker.token_s = 1.0, 0.2
    total = 0.0
    while sum(map(len, driver.tokens.values())) < num_tokens:
        while driver.num_added - len(driver.ends) < num_rows:
            driver.add(2, max_tokens=32)
        while driver.plan() is not None:
            driver.execute()
        total += driver.answers[0].step_s
        driver.apply()
    return total


@pytest.mark.parametrize("accuracy", [0.0, 0.5])
@pytest.mark.parametrize("num_rows", [4, 16])
def test_sequences_too_short_to_be_learned_lose_little_one_after_another(drive, num_rows, accuracy):
    plain, drafted = (
        seconds_of_short_sequences(
            drive(num_drafts=num_drafts, accuracy=accuracy, pipeline_depth=2, num_blocks=400), num_rows, 100 * num_rows
        )
        for num_drafts in (0, 8)
    )
    assert drafted <= 1.04 * plain


@pytest.mark.parametrize(("accuracy", "least", "most"), [(0.0, 0.97, 1.0), (0.95, 1.8, 9.0)])
def test_time_is_saved_where_drafts_are_right_and_hardly_lost_where_they_are_wrong(drive, accuracy, least, most):
    """The engine with a worker whose steps take 1 + 0.1 per token; outputs are equal in any case."""
    seconds = []
    for num_drafts in (0, 8):
        shape = {"windows": (8,), "max_model_len": 1200, "num_blocks": 64, "max_num_batched_tokens": 16}
        driver = drive(num_drafts=num_drafts, accuracy=accuracy, **shape)
        driver.worker.step_s, driver.worker.token_s = 1.0, 0.1
        driver.add(4, max_tokens=1000)
        total = 0.0
        while driver.plan() is not None:
            driver.execute()
            total += driver.answers[0].step_s
            driver.apply()
        seconds.append(total)
    assert least <= seconds[0] / seconds[1] <= most
