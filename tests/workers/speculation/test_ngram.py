"""The drafter from a row's own text, compared with a search by definition."""

import random

import numpy as np
import pytest

from paged_serve.workers.speculation.drafter import DraftRequest
from paged_serve.workers.speculation.ngram import MAX_CANDIDATES, MAX_MATCH, NgramDrafter


def agreement(tokens: list[int], end: int) -> int:
    """The number of tokens up to `end` that equal the last ones, at most MAX_MATCH."""
    length = 0
    while length < min(MAX_MATCH, end + 1) and tokens[end - length] == tokens[len(tokens) - 1 - length]:
        length += 1
    return length


def by_definition(tokens: list[int], most: int) -> list[int]:
    ends = [end for end in range(len(tokens) - 1) if tokens[end] == tokens[-1]][-MAX_CANDIDATES:]
    if not ends:
        return []
    end = max(ends, key=lambda each: (agreement(tokens, each), each))
    text, drafts = list(tokens), []
    for place in range(min(most, agreement(tokens, end))):
        drafts.append(text[end + 1 + place])
        text.append(drafts[-1])
    return drafts


def drafted(tokens: list[int], most: int) -> list[int]:
    [drafts] = NgramDrafter().draft([DraftRequest(0, np.array(tokens, np.int32), most)])
    assert drafts.dtype == np.int32
    return drafts.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_drafts_follow_the_latest_of_the_longest_matches(seed):
    rng = random.Random(seed)
    for _ in range(30):
        compare(rng)


def compare(rng: random.Random) -> None:
    distinct = rng.choice((1, 2, 3, 10, 100))
    tokens = [rng.randrange(distinct) for _ in range(rng.choice((1, 2, 3, rng.randint(1, 300))))]
    if rng.random() < 0.5:  # long matches
        start = rng.randrange(len(tokens))
        tokens += tokens[start : start + rng.randint(1, 50)]
    most = rng.choice((1, 2, 8, 64))
    assert drafted(tokens, most) == by_definition(tokens, most)


def test_a_text_without_a_repetition_has_no_drafts():
    assert drafted(list(range(100)), 8) == []


def test_a_longer_match_has_more_drafts_than_a_shorter_one():
    text = list(range(10, 60))
    assert drafted([*text, 1, 30], 8) == [31]
    assert drafted([*text, 1, 29, 30], 8) == [31, 32]
    assert drafted([*text, 1, 28, 29, 30], 2) == [31, 32]


def test_a_text_that_repeats_itself_is_drafted_past_its_end():
    assert drafted([1, 2, 3] * 5, 7) == [1, 2, 3, 1, 2, 3, 1]
