"""Chooses the waiting sequence for the next free row: the first in the queue, or one behind it while that does not fit.

A bounded number of sequences is admitted past one that does not fit, so every sequence is admitted in the end.
"""

from collections.abc import Collection
from itertools import islice

from ..kv.kv_cache import KVCache
from ..requests.request import Sequence
from .fair_share import FairShares
from .preemption import choose_victims, is_row_reserved
from .waiting_queue import WaitingQueue

PASSES_PER_ROW = 4  # admissions past a sequence that does not fit, per row
MAX_PASSERS_TRIED = 8  # sequences behind it that are looked at in a step


class RowAssigner:
    """Reads the waiting queue, allocates the blocks of what it chooses, and counts passes."""

    def __init__(
        self, kv_cache: KVCache, waiting: WaitingQueue, shares: FairShares, max_num_rows: int, cuts_prompts: bool
    ) -> None:
        self.max_passes = PASSES_PER_ROW * max_num_rows
        self._kv_cache = kv_cache
        self._waiting = waiting
        self._shares = shares
        self._max_num_rows = max_num_rows
        self._cuts_prompts = cuts_prompts

    def choose(
        self, first: Sequence, running: Collection[Sequence], just_admitted: Collection[Sequence], budget: int
    ) -> tuple[Sequence | None, Collection[Sequence]]:
        """The sequence to admit, None if none can start in `budget` tokens, and those to preempt for it.

        `first` is the first in the queue. The blocks are allocated, unless others must be preempted before.
        """
        num_running = len(running)
        if self._is_row_reserved(first, num_running) or not self._may_begin(first, budget):
            return None, ()
        if self.find_room(first, num_running):
            return first, ()
        if victims := choose_victims(first, running, just_admitted, self._shares, self._kv_cache):
            return first, victims
        return self._find_passer(first, num_running, budget), ()

    def find_room(self, sequence: Sequence, num_running: int) -> bool:
        """Allocate the blocks of `sequence`; False if they, or a row, are not free."""
        watermark = self._kv_cache.num_groups * num_running  # each may fill its blocks before one is preempted
        has_row = num_running < self._max_num_rows
        return has_row and self._kv_cache.admit(sequence, sequence.request.sharer, watermark)

    def _may_begin(self, sequence: Sequence, budget: int) -> bool:
        """Whether the first chunk of `sequence` may start now, with `budget` tokens."""
        return self._cuts_prompts or sequence.num_tokens <= budget

    def _is_row_reserved(self, sequence: Sequence, num_running: int) -> bool:
        num_free = self._max_num_rows - num_running
        return is_row_reserved(sequence, num_free, self._max_num_rows, self._waiting, self._shares)

    def _find_passer(self, first: Sequence, num_running: int, budget: int) -> Sequence | None:
        """Find a sequence that fits although `first`, which precedes it, does not, and allocate its blocks.

        It is preempted once `first` fits without it, so it is never one that was preempted in favour of another. Every
        sequence that it passes counts the pass, and none is passed more than `max_passes` times.
        """
        if num_running == self._max_num_rows or first.num_passed >= self.max_passes:
            return None
        passed = [first]
        for sequence in islice(self._waiting.behind(first), MAX_PASSERS_TRIED):
            may_pass = sequence.request.leader is None and not sequence.num_yielded
            may_pass = may_pass and self._may_begin(sequence, budget)
            if may_pass and not self._is_row_reserved(sequence, num_running) and self.find_room(sequence, num_running):
                for each in passed:
                    each.num_passed += 1
                sequence.passed = first
                return sequence
            if sequence.num_passed >= self.max_passes:
                return None
            passed.append(sequence)
        return None
