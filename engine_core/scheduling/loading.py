"""Sequences whose prefix is being loaded from a tier. Like followers, they wait outside the queue.

A sequence is loaded for when it is the first in the queue and its blocks would fit. Once the blocks are in the prefix
cache it returns to its place in the queue, and is admitted like any other. What was not loaded is computed.
"""

from collections.abc import Callable, Iterator

from ..kv.kv_cache import KVCache
from ..kv.tiers.tiers import KVTiers
from ..requests.request import Sequence
from .waiting_queue import WaitingQueue

CONTENTS = 0  # in place of a load's number: what the tiers have is not known yet
MAX_LOADS = 3  # of one sequence: its blocks may be evicted again before it is admitted
LONGEST_LOAD_S = 10.0  # a sequence waits no longer, whatever the load does
LONGEST_OPENING_S = 2.0  # nor for the contents of the tiers


class LoadingSequences:
    """Which sequences wait for which transfer. Without tiers it is always empty."""

    def __init__(self, kv_cache: KVCache, waiting: WaitingQueue):
        self._kv_cache = kv_cache
        self._waiting = waiting
        self._transfer_of: dict[Sequence, int] = {}
        self._transfer_with: dict[bytes, int] = {}  # key -> the load that it is part of
        self._waits_for_contents = True  # False: a rank takes too long to list them
        self.prompt_token_s: Callable[[], float] = lambda: 0.0  # to compute a token of a prompt; 0: not known

    def __len__(self) -> int:
        return len(self._transfer_of)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._transfer_of)

    def set_aside(self, first: Sequence, num_running: int) -> bool:
        """Take `first`, the first in the queue, out of it if it waits for its leader, or blocks of it are loaded."""
        if first.request.leader is not None:
            self._waiting.take(first)
            first.request.followers.append(first)
            return True
        return self._kv_cache.tiers is not None and self._begin(first, self._kv_cache.tiers, num_running)

    def _begin(self, first: Sequence, tiers: KVTiers, num_running: int) -> bool:
        if first.num_loads >= MAX_LOADS or not first.may_read_cache:
            return False
        if not tiers.index.is_known:
            if self._waits_for_contents:
                self._take(first, CONTENTS)
            return self._waits_for_contents
        if (hit := self._kv_cache.find_in_tiers(first)) is None:
            return False
        number = next((found for key in hit.keys if (found := self._transfer_with.get(key))), 0)
        if not number:
            if not self._kv_cache.has_room_for(first, hit, self._kv_cache.num_groups * num_running):
                return False
            compute_s = hit.num_tokens * self.prompt_token_s()
            if not tiers.speed.is_worth(len(hit.keys) * tiers.bytes_per_block, compute_s):
                first.num_loads = MAX_LOADS
                return False
            number = tiers.load(first, hit)
            self._transfer_with |= dict.fromkeys(hit.keys, number)
        self._take(first, number)
        return True

    def _take(self, first: Sequence, number: int) -> None:
        first.num_loads += 1
        self._waiting.take(first)
        self._waiting.adapters.leave(first)  # another adapter may have its place meanwhile
        self._transfer_of[first] = number

    def ended(self, number: int, keys: list[bytes]) -> None:
        """Put the sequences that wait for this load back into the queue."""
        for key in keys:
            self._transfer_with.pop(key, None)
        for sequence in [each for each, transfer in self._transfer_of.items() if transfer == number]:
            del self._transfer_of[sequence]
            self._waiting.add(sequence)

    def expire(self, now: float) -> None:
        """Let sequences compute what takes too long to load. The transfer keeps its blocks until it is answered."""
        if (tiers := self._kv_cache.tiers) is None or not self._transfer_of:
            return  # nothing waits
        late = {number for number, load in tiers.transfers.items() if now > load.sent_s + LONGEST_LOAD_S}
        if now > tiers.opened_s + LONGEST_OPENING_S:
            late.add(CONTENTS)
            self._waits_for_contents = False
        for sequence in [each for each, number in self._transfer_of.items() if number in late]:
            del self._transfer_of[sequence]
            sequence.num_loads = MAX_LOADS
            self._waiting.add(sequence)

    def remove_waiting(self, sequence: Sequence) -> None:
        """Remove a sequence that waits for a load, in the queue or outside it."""
        if self._transfer_of.pop(sequence, None) is None:
            self._waiting.remove(sequence)

    def restart(self) -> None:
        """Put all sequences back into the queue: the workers were lost, and with them all loads."""
        sequences, self._transfer_of = self._transfer_of, {}
        self._transfer_with.clear()
        self._waits_for_contents = True
        for sequence in sequences:
            self._waiting.add(sequence)
