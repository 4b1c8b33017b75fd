"""Earlier answers, in which suffix drafts are found: the last tokens of all answers in one ring, with an index.

Each answer belongs to an owner, and only rows of that owner find it: whether drafts are right shows in the times of
tokens, which must not tell one client what another one was answered.

The index has a chain for each run of N tokens that was seen (N of RUNS), from its latest place to earlier ones, like
the chains of deflate: adding a token takes constant time, and so does a search, which follows at most MAX_PLACES links.
Old text is overwritten; links to it end there, since positions only grow.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from .ngram import MAX_MATCH

RUNS = (8, 3)  # lengths of indexed runs, the longest first: places of common short runs are too many to compare
MAX_PLACES = 32  # that are compared
MAX_OWNERS = 1 << 16  # known at a time; of one that returns after so many others, earlier answers are not found
NO_TOKEN = -1  # before each answer, and after the end of text
NO_PLACES = np.zeros(0, np.int64)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Matches = tuple[NDArray[np.int32], int]  # continuations [places, most] with NO_TOKEN after each's end; agreeing tokens


class Answers:
    """The last `num_tokens` tokens of answers, rounded up to a power of two."""

    def __init__(self, num_tokens: int):
        size = 1 << max(6, (num_tokens - 1).bit_length())
        self._last = size - 1
        self._tokens = np.full(size, NO_TOKEN, np.int32)
        self._owners = np.full(size, -1, np.int32)
        self._chains = [Chains(size) for _ in RUNS]
        self._end = size  # position of the next token; position p is at p % size. The first `size` never existed
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._num_owners = 0

    @property
    def _oldest(self) -> int:
        """The first position that is not overwritten."""
        return self._end - self._last - 1

    def owner(self, history: bytes) -> int:
        """The number of the owner of this name."""
        if history not in self._known:
            self._known[history] = self._num_owners
            self._num_owners += 1
            if len(self._known) > MAX_OWNERS:
                self._known.popitem(last=False)
        self._known.move_to_end(history)
        return self._known[history]

    def add(self, owner: int, text: NDArray[np.int32], num_before: int) -> None:
        """Add an answer: the last tokens of `text`, after `num_before` tokens that precede it and are only compared."""
        num_cut = max(0, len(text) - self._last)
        text, num_before = text[num_cut:], max(0, num_before - num_cut)
        positions = self._end + np.arange(len(text) + 1)
        places = positions & self._last
        self._tokens[places] = np.concatenate(([np.int32(NO_TOKEN)], text))
        self._owners[places] = owner
        self._end += len(text) + 1
        for run, chains in zip(RUNS, self._chains, strict=True):
            first = max(0, num_before - run)  # the answer's first token follows the last run that ends before it
            chains.add(codes(text[first:], run, owner), positions[1 + first + run - 1 :])

    def find(self, owner: int, text: NDArray[np.int32], most: int) -> Matches:
        """What followed where an answer of `owner` agrees longest with the end of `text`; the latest place first."""
        tail = text[-MAX_MATCH:]
        for run, chains in zip(RUNS, self._chains, strict=True):
            if len(tail) < run:
                continue
            [code] = codes(tail[-run:], run, owner)
            places = chains.places(code, self._oldest)
            lengths = self._agreements(owner, places, tail)
            if len(lengths) and (longest := int(lengths.max())) >= run:
                return self._following(places[lengths == longest], most), longest
        return np.zeros((0, most), np.int32), 0

    def _agreements(self, owner: int, ends: NDArray[np.int64], tail: NDArray[np.int32]) -> NDArray[np.int64]:
        """How many tokens up to each of `ends` agree with `tail`."""
        positions = ends[:, None] - np.arange(len(tail))
        places = positions & self._last
        agree = (self._tokens[places] == tail[::-1]) & (positions >= self._oldest)
        agree &= (self._owners[places[:, 0]] == owner)[:, None]  # codes of different owners may be equal
        lengths: NDArray[np.int64] = np.logical_and.accumulate(agree, axis=1).sum(axis=1)
        return lengths

    def _following(self, ends: NDArray[np.int64], most: int) -> NDArray[np.int32]:
        positions = ends[:, None] + 1 + np.arange(most)
        tokens = np.where(positions < self._end, self._tokens[positions & self._last], np.int32(NO_TOKEN))
        is_over = np.logical_or.accumulate(tokens == NO_TOKEN, axis=1)
        tokens[is_over] = NO_TOKEN
        return tokens


class Chains:
    """The places of each run, newest first."""

    def __init__(self, size: int):
        self._last = size - 1
        self._newest = np.zeros(size, np.int64)  # by code: a position, or 0
        self._earlier = np.zeros(size, np.int64)  # by place: the position before it in its chain, or 0

    def add(self, of: NDArray[np.uint64], positions: NDArray[np.int64]) -> None:
        """Add runs with these codes that end at these ascending positions."""
        slots = (of >> np.uint64(32)).astype(np.int64) & self._last
        order = np.argsort(slots, kind="stable")
        slots, positions = slots[order], positions[order]
        earlier = self._newest[slots]
        is_same = slots[1:] == slots[:-1]
        earlier[1:][is_same] = positions[:-1][is_same]
        self._earlier[positions & self._last] = earlier
        self._newest[slots] = positions  # of equal slots the last one stays

    def places(self, code: np.uint64, oldest: int) -> NDArray[np.int64]:
        """Positions at or after `oldest` whose runs may have this code."""
        found: list[int] = []
        position = int(self._newest[int(code >> np.uint64(32)) & self._last])
        while position >= oldest and len(found) < MAX_PLACES:
            found.append(position)
            position = int(self._earlier[position & self._last])
        return np.array(found, np.int64) if found else NO_PLACES


def codes(text: NDArray[np.int32], run: int, owner: int) -> NDArray[np.uint64]:
    """A code of each run of tokens in `text`, of one owner: equal for equal runs."""
    count = max(0, len(text) - run + 1)
    found = np.full(count, owner + 1, np.uint64) * _MULTIPLIER
    for start in range(run):
        found = (found ^ text[start : start + count].astype(np.uint64)) * _MULTIPLIER
        found ^= found >> np.uint64(29)
    return found
