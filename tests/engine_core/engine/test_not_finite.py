"""Logits that are not finite: their tokens are computed again, and their blocks reach no other sequence."""

import pytest
from msgspec.structs import replace

from paged_serve.engine_core.drafting.draft_policy import DraftPolicy
from paged_serve.engine_core.drafting.policies import FixedPolicy
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason

from .changed_answers import advance, not_finite


def test_a_token_from_non_finite_logits_is_not_delivered_and_computed_again(drive):
    reference = drive()
    stream = reference.add(9, max_tokens=10, seed=1)
    reference.run()
    driver = drive(pipeline_depth=2)
    driver.add(9, max_tokens=10, seed=1)
    for _ in range(6):
        driver.plan()
        driver.execute()
        if len(driver.answers) == 2:
            driver.apply()
    driver.apply(not_finite(0))
    assert driver.engine.kv_cache.pool.num_cached == 0, "what may be poisoned can still be found"
    driver.run()
    assert driver.tokens[stream] == reference.tokens[stream]


@pytest.mark.parametrize("steps", [0, 6])
def test_blocks_of_an_aborted_sequence_are_invalidated_when_its_last_step_was_not_finite(drive, steps):
    driver = drive(pipeline_depth=2, max_num_batched_tokens=8)
    stream = driver.add(14, max_tokens=10)
    advance(driver)  # the first chunk, which fills two blocks
    for _ in range(steps):
        advance(driver)
    driver.plan()
    driver.execute()
    driver.abort(stream)
    assert driver.engine.kv_cache.pool.num_cached
    driver.apply(not_finite(0))
    assert driver.engine.kv_cache.pool.num_cached == 0, "what may be poisoned can still be found"


def test_no_sequence_shares_invalid_blocks_with_a_sibling_that_had_them_before(drive):
    driver = drive()
    driver.add(9, max_tokens=10)
    advance(driver)
    both = driver.add([*range(1, 10), 50, 51, 52, 53], max_tokens=10, n=2)
    first = driver.plan().new_rows[0]
    assert first.num_computed_tokens == 8, "the test needs a shared prefix"
    driver.execute()
    driver.apply(not_finite(0))
    computed = {row.row: row.num_computed_tokens for row in driver.plan().new_rows}
    assert computed[driver.sequence(both + 1).row] == 0


def test_a_sequence_with_non_finite_logits_reuses_only_its_own_blocks(drive):
    driver = drive()
    stream = driver.add(9, max_tokens=10, n=2, seed=1)
    for _ in range(3):
        advance(driver)
    advance(driver, not_finite(1))
    again = driver.plan().new_rows[0]
    assert (driver.sequence(stream + 1).row, again.num_computed_tokens) == (again.row, 0)


def test_non_finite_logits_at_a_second_try_end_the_sequence_with_an_error_and_no_other(drive):
    driver = drive()
    bad, good = driver.add([1] * 6, max_tokens=10), driver.add([2] * 6, max_tokens=10)
    advance(driver, not_finite(0))
    advance(driver, not_finite(1))  # the good one decodes first now
    assert driver.ends[bad].finish_reason is FinishReason.ERROR
    assert "not finite" in driver.ends[bad].error
    driver.run()
    assert len(driver.tokens[good]) == 10
    assert driver.engine.kv_cache.pool.num_free == driver.facts.num_blocks


def last_is_not_finite(answer):
    return replace(answer, nan_indices=pack_ids([len(unpack_ids(answer.token_ids)) - 1]))


@pytest.mark.parametrize("policy", [FixedPolicy, DraftPolicy])
@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_that_make_every_result_not_finite_end_no_sequence_with_an_error(drive, policy, depth):
    """In a verification an infinite value of a draft also reaches the tokens before it, as 0 times infinity."""
    plain, driver = drive(), drive(num_drafts=3, draft_policy=policy, pipeline_depth=depth)
    stream, _ = [each.add(4, max_tokens=90) for each in (driver, plain)]
    plain.run()
    num_poisoned = 0
    while stream not in driver.ends:
        while driver.plan() is not None:
            driver.execute()
        has_drafts = any(unpack_ids(driver.answers[0].num_drafted))
        num_poisoned += has_drafts
        driver.apply(last_is_not_finite if has_drafts else lambda answer: answer)
    assert num_poisoned > 0, "nothing was drafted"
    assert driver.ends[stream].finish_reason is FinishReason.LENGTH
    assert driver.tokens[stream] == plain.tokens[stream]
