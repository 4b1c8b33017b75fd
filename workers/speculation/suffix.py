"""Drafts from a row's own text and from earlier answers: after the longest match, the most frequent continuation.

The idea is that of SuffixDecoding (https://arxiv.org/abs/2411.04975), whose trees of suffixes count continuations. Here
the places of the longest match are found when they are needed, and what followed there is counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.worker import SchedulerOutput

from ..batch.request_rows import RequestRows
from .answers import NO_TOKEN, Answers
from .drafter import DraftRequest
from .ngram import MAX_MATCH, longest_match

MAX_COUNTED = 32  # places of the longest match, the latest
MIN_SHARE = 0.2
LONG_MATCH = 3  # tokens; after shorter matches there are as many drafts as agreed, after these twice as many


@dataclass(slots=True)
class Author:
    """Whose text a row is, and how much of it is among the answers."""

    owner: int
    num_known: int  # tokens of the row


class SuffixDrafter:
    """The Drafter of speculation.method="suffix". It keeps answers on rank 0, and loses them with the process."""

    def __init__(self, num_tokens: int):
        """`num_tokens`: of earlier answers that are kept; 0: only a row's own text is used."""
        self._answers = Answers(num_tokens) if num_tokens else None
        self._authors: dict[int, Author] = {}  # by row

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        return [self._continuation(request) for request in requests]

    def learn(self, plan: SchedulerOutput, rows: RequestRows, num_late: int) -> None:
        """Learn the answers of rows that have ended."""
        if self._answers is None:
            return
        busy = {*rows.decode_set.tolist(), *unpack_ids(plan.decode_joins), *(chunk.row for chunk in plan.chunks)}
        busy -= {*unpack_ids(plan.decode_leaves), *(new.row for new in plan.new_rows)}
        for row in sorted(self._authors.keys() - busy):
            self._learn(row, rows, num_late)
        for new in plan.new_rows:
            self._authors.pop(new.row, None)
            if new.history:
                self._authors[new.row] = Author(self._answers.owner(new.history), len(new.token_ids) // 4)

    def _learn(self, row: int, rows: RequestRows, num_late: int) -> None:
        assert self._answers is not None
        author, length = self._authors[row], int(rows.length[row]) - num_late
        if length <= author.num_known:
            return
        first = max(0, author.num_known - MAX_MATCH)
        self._answers.add(author.owner, rows.token_ids[row, first:length], author.num_known - first)
        author.num_known = length

    def _continuation(self, request: DraftRequest) -> NDArray[np.int32]:
        ends, length = longest_match(request.tokens)
        options = repeated(request.tokens, ends[-MAX_COUNTED:][::-1], request.most)
        author = self._authors.get(request.row)
        if author is not None and self._answers is not None:
            others, others_length = self._answers.find(author.owner, request.tokens, request.most)
            if others_length > length:
                options, length = others, others_length
            elif others_length == length and len(others):
                options = np.concatenate((options, others))
        most = 2 * length if length >= LONG_MATCH else length
        return most_frequent(options[:, : min(most, request.most)])


def repeated(tokens: NDArray[np.int32], ends: NDArray[np.int64], most: int) -> NDArray[np.int32]:
    """What followed each of `ends` [places, most]; a text that reaches its own end continues with itself."""
    places = np.arange(most) % (len(tokens) - 1 - ends)[:, None]
    options: NDArray[np.int32] = tokens[ends[:, None] + 1 + places]
    return options


def most_frequent(options: NDArray[np.int32]) -> NDArray[np.int32]:
    """The path that most of these continuations [places, most] take; of equal ones that of the first.

    Each token is the most frequent one of those continuations that agree so far; a path ends where fewer than MIN_SHARE
    of all continuations agree.
    """
    if len(options) and (options == options[0]).all():
        drafts: NDArray[np.int32] = options[0][options[0] != NO_TOKEN]
        return drafts
    fewest = MIN_SHARE * len(options)
    path: list[int] = []
    for column in range(options.shape[1]):
        counts = Counter(options[:, column].tolist())
        del counts[NO_TOKEN]
        if not counts:
            break
        [(best, count)] = counts.most_common(1)  # the first of those with the same count
        if count < fewest:
            break
        path.append(best)
        options = options[options[:, column] == best]
    return np.array(path, np.int32)
