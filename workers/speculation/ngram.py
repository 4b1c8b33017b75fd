"""Drafts from a row's own text: what followed the last time that the text ended like now (prompt lookup decoding).

The method is known from https://github.com/apoorvumang/prompt-lookup-decoding. It needs no model and keeps no state.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .drafter import NO_DRAFTS, DraftRequest

MAX_MATCH = 32  # tokens compared; longer matches are not distinguished
MAX_CANDIDATES = 1024  # the latest occurrences of the last token; text of few distinct tokens has too many


class NgramDrafter:
    """The Drafter of speculation.method="ngram"."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        return [continuation(request.tokens, request.most) for request in requests]


def continuation(tokens: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """What followed the earlier occurrence that agrees longest with the end of `tokens`, the latest of several.

    At most as many tokens as agreed: then the last of them is right in 10 to 20 of 100 cases, whatever their number. A
    continuation that reaches the end of `tokens` continues with itself, because the text then repeats itself.
    """
    ends, length = longest_match(tokens)
    if not len(ends):
        return NO_DRAFTS
    end, last = int(ends[-1]), len(tokens) - 1
    places = np.arange(min(length, most)) % (last - end)
    return tokens[end + 1 + places]


def longest_match(tokens: NDArray[np.int32]) -> tuple[NDArray[np.int64], int]:
    """The earlier places, ascending, up to which most tokens agree with the end of `tokens`, and how many do."""
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])[-MAX_CANDIDATES:]
    if not len(ends):
        return ends, 0
    length = 1
    while length < MAX_MATCH:
        before = ends[np.searchsorted(ends, length) :]  # those with so many tokens before them
        before = before[tokens[before - length] == tokens[last - length]]
        if not len(before):
            break
        ends, length = before, length + 1
    return ends, length
