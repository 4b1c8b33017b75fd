"""A row's reasoning ends within its budget and depends on the output alone; random outputs often contain tags."""

import random

import numpy as np
import pytest

from paged_serve.protocol.messages.samplers import ThinkingBudget
from paged_serve.workers.batch.reasoning import Reasoning

VOCAB_SIZE = 40
TAGS = [((1,), (2,)), ((1,), (2, 3)), ((1, 4), (2, 2, 3)), ((1, 1), (3, 2, 3))]


def budgets(begin, end):
    return [ThinkingBudget(limit, begin, end, used) for limit in (0, 1, 3, 8) for used in (None, 0, 2)]


def generated(row: Reasoning, rng: random.Random, length: int = 60) -> list[int]:
    output = []
    for _ in range(length):
        token = rng.choice((1, 1, 2, 3, 4, 5)) if row.forced is None else row.forced
        row.append(token)
        output.append(token)
    return output


def lengths(output: list[int], budget: ThinkingBudget) -> list[int]:
    """The length of each reasoning, found by searching the tags: tokens in the prompt count, the end tag does not."""
    found, rest, used = [], output, budget.num_prompt_tokens
    while True:
        if used is None:
            at = first(rest, budget.begin)
            if at is None:
                return found
            rest, used = rest[at + len(budget.begin) :], 0
        at = first(rest, budget.end)
        if at is None:
            return found
        found.append(used + at)
        rest, used = rest[at + len(budget.end) :], None


def first(tokens: list[int], tag: tuple[int, ...]) -> int | None:
    return next((i for i in range(len(tokens)) if tuple(tokens[i : i + len(tag)]) == tag), None)


@pytest.mark.parametrize("tags", TAGS)
def test_reasoning_is_never_longer_than_its_budget_and_often_as_long(tags):
    rng, found = random.Random(1), []
    for budget in budgets(*tags) * 20:
        here = lengths(generated(Reasoning.prepare(budget, VOCAB_SIZE, []), rng), budget)
        limits = [max(budget.max_tokens, budget.num_prompt_tokens or 0), *[budget.max_tokens] * len(here)]
        assert all(length <= limit for length, limit in zip(here, limits, strict=False)), (budget, here)
        found += [length == budget.max_tokens for length in here]
    assert 100 < sum(found) < len(found), "no reasoning ended by itself"


@pytest.mark.parametrize("tags", TAGS)
def test_a_row_that_returns_with_its_output_forces_the_same_tokens(tags):
    rng = random.Random(2)
    for budget in budgets(*tags):
        output = generated(Reasoning.prepare(budget, VOCAB_SIZE, []), rng)
        row = Reasoning.prepare(budget, VOCAB_SIZE, [])
        for length in range(len(output)):
            back = Reasoning.prepare(budget, VOCAB_SIZE, output[:length])
            assert (back.forced, back.num_used, back.num_matched) == (row.forced, row.num_used, row.num_matched)
            row.append(output[length])


@pytest.mark.parametrize("tags", TAGS)
def test_no_token_is_forced_where_none_may_be(tags):
    """A device samples a step before the host knows the last tokens; `may_force` tells whether it must wait."""
    rng, num_free = random.Random(3), 0
    for budget in budgets(*tags) * 4:
        row = Reasoning.prepare(budget, VOCAB_SIZE, [])
        output = generated(row, rng)
        for length in range(len(output)):
            known = Reasoning.prepare(budget, VOCAB_SIZE, output[: max(0, length - 2)])
            here = Reasoning.prepare(budget, VOCAB_SIZE, output[:length])
            if known.may_force(length):
                continue
            num_free += 1
            assert here.forced is None, (budget, output[:length])
    assert num_free > 500


def test_the_mask_has_only_the_forced_token():
    row = Reasoning.prepare(ThinkingBudget(0, (1,), (35,), 0), VOCAB_SIZE, [])
    bits = np.unpackbits(row.forced_bits().view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [35]


def test_a_call_ends_reasoning_and_no_tag_is_forced_into_it():
    output = [4, 5, 4, 4, 4, 4]
    for calls, forced in (((), 2), ((5,), None), ((3, 5), None), ((3,), 2)):
        row = Reasoning.prepare(ThinkingBudget(3, (1,), (2,), 0, calls), VOCAB_SIZE, output)
        assert row.forced == forced
    row.append(2)
    row.append(1)  # reasoning begins again, with its own budget
    assert [row.forced for token in (4, 4, 4) if row.append(token) is None] == [None, None, 2]
