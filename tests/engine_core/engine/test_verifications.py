"""Answers to verifications: what does not fit the plan changes nothing, and no token is lost at an error."""

import copy

import pytest
from msgspec.structs import replace

from paged_serve.engine_core.drafting.policies import FixedPolicy
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import RowFailure

from .. import conftest


@pytest.fixture
def verified(drive):
    """A driver with an answer to a verification of three drafts, all of them right, and of another without any."""
    driver = drive(num_drafts=3, accuracy=1.0, draft_policy=FixedPolicy)
    driver.add(4, max_tokens=30)
    driver.step()
    while True:
        driver.plan()
        driver.execute()
        if unpack_ids(driver.answers[0].num_sampled).tolist() == [4]:
            return driver
        driver.apply()


def edited(**changes):
    return lambda answer: replace(answer, **{name: pack_ids(values) for name, values in changes.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(num_sampled=[4, 1], num_drafted=[3, 0]), "counts 2 verifications instead of 1"),
        (edited(num_sampled=[], num_drafted=[]), "counts 0 verifications instead of 1"),
        (edited(num_sampled=[4], num_drafted=[4]), "made 4 drafts"),
        (edited(num_sampled=[4], num_drafted=[2]), "sampled 4"),
        (edited(num_sampled=[0]), "sampled 0"),
        (edited(num_sampled=[3]), "returned 4 tokens instead of 3"),
        (edited(nan_indices=[1]), "after a token that is missing"),
        (lambda answer: replace(answer, failures=(RowFailure(0, "no"),)), "after a token that is missing"),
    ],
)
def test_counts_that_do_not_fit_the_plan_change_nothing(verified, change, message):
    sequence = verified.sequence(1000)
    before = list(sequence.output), copy.copy(sequence.speculating)
    with pytest.raises(ProtocolError, match=message):
        verified.engine.apply(change(verified.answers[0]), verified.now)
    assert (sequence.output, sequence.speculating) == before
    verified.apply()
    assert len(sequence.output) == len(before[0]) + 4


def test_counts_without_a_verification_are_refused(drive):
    driver = drive()
    driver.add(4, max_tokens=30)
    driver.plan()
    driver.execute()
    with pytest.raises(ProtocolError, match="counts 1 verifications instead of 0"):
        driver.engine.apply(edited(num_sampled=[1], num_drafted=[1])(driver.answers[0]), driver.now)


def test_tokens_before_a_failure_and_the_failure_are_one_output(verified):
    before = len(verified.sequence(1000).output)
    verified.apply(lambda answer: replace(answer, failures=(RowFailure(3, "the grammar ends"),)))
    end = verified.ends[1000]
    assert (end.finish_reason, end.error) == (FinishReason.ERROR, "the grammar ends")
    assert (end.position, len(unpack_ids(end.token_ids))) == (before, 3)
    assert end.times is not None


def test_a_discarded_verification_gives_no_token(verified):
    before = len(verified.tokens[1000])
    verified.abort(1000)
    verified.apply()
    assert len(verified.tokens[1000]) == before
    assert verified.engine.is_idle
    assert verified.engine.kv_cache.pool.num_free == verified.facts.num_blocks


def test_a_discarded_verification_that_is_not_finite_removes_its_blocks_from_the_prefix_cache(verified):
    sequence = verified.sequence(1000)
    verified.abort(1000)
    pool = verified.engine.kv_cache.pool
    found = [pool.block_of(name) for name in sequence.block_hashes]
    assert found
    assert min(found) >= 0
    verified.apply(edited(nan_indices=[3]))
    assert {pool.block_of(name) for name in sequence.block_hashes} == {-1}


def test_the_driver_of_these_tests_speculates():
    assert conftest.Driver(num_drafts=1).scheduler.speculation.is_on
