"""The order of tokens in answers with an idempotency key."""

import random

import pytest

from paged_serve.frontend.client.streams.deltas import SequenceDelta, TokenLogprobs
from paged_serve.frontend.http.openai.streaming.round_robin import RoundRobin
from paged_serve.protocol.messages.sampling_params import FinishReason


def delta(choice: int, tokens: list[int], *, ends: bool) -> SequenceDelta:
    logprobs = [TokenLogprobs([token], [-1.0], 1) for token in tokens]
    return SequenceDelta(choice, tokens, logprobs, finish_reason=FinishReason.STOP if ends else None)


def order(lengths: list[int], rng: random.Random) -> list[tuple[int, list[int], bool]]:
    """The order of tokens for choices of these lengths, whose tokens arrive in random portions."""
    turns, sent, found = RoundRobin(len(lengths)), [0] * len(lengths), []
    while any(had < length for had, length in zip(sent, lengths, strict=True)):
        choice = rng.choice([c for c, length in enumerate(lengths) if sent[c] < length])
        count = rng.randint(1, lengths[choice] - sent[choice])
        tokens = [*range(sent[choice], sent[choice] + count)]
        sent[choice] += count
        turns.add(choice, delta(choice, tokens, ends=sent[choice] == lengths[choice]))
        while (turn := turns.take()) is not None:
            index, one = turn
            assert one.index == index
            assert [entry.token_ids for entry in one.logprobs] == [[token] for token in one.token_ids]
            found.append((index, one.token_ids, one.finish_reason is not None))
            if one.finish_reason is not None:
                turns.end(index)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_timing_changes_the_order_and_no_token_waits_for_a_choice_that_has_ended(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
    expected = [
        (choice, [position], position == length - 1)
        for position in range(max(lengths))
        for choice, length in enumerate(lengths)
        if position < length
    ]
    for _ in range(5):
        assert order(lengths, rng) == expected


@pytest.mark.parametrize("is_at_once", [False, True])
def test_an_error_comes_after_the_tokens_before_it(is_at_once):
    turns, found = RoundRobin(2), []
    failed = SequenceDelta(0, [3] if is_at_once else [], finish_reason=FinishReason.ERROR, error="no", param="stop")
    for one in [delta(0, [1, 2] if is_at_once else [1, 2, 3], ends=False), failed, delta(1, [7, 8, 9, 10], ends=False)]:
        turns.add(one.index, one)
    while (turn := turns.take()) is not None and turn[1].finish_reason is None:
        found += turn[1].token_ids
    assert turn is not None
    assert (found, turn[0], turn[1].error, turn[1].param) == ([1, 7, 2, 8, 3, 9], 0, "no", "stop")


def test_tokens_cut_by_a_stop_string_are_left_out():
    turns = RoundRobin(2)
    turns.add(0, delta(0, [1, 2, 3], ends=False))
    assert turns.take()[1].token_ids == [1]
    turns.end(0)
    turns.add(1, delta(1, [7], ends=True))
    assert turns.take()[0] == 1
    turns.end(1)
    assert turns.take() is None
