"""Follows the events of a server's prefix cache: which blocks can be found there. It does no input or output."""

from collections import defaultdict

import msgspec

from .messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, KVEventBatch

FROM_THE_START = 0  # a replay from this number is a snapshot
MAX_UNREAD = 20_000  # published batches that a replay has overtaken: more than the queues of both sides hold
Blocks = set[tuple[bytes, int]]  # hash, KV group


class KVEventIndex:
    """The blocks that can be found. It is right up to the last batch that `receive` accepted.

    The reader subscribes, requests a replay from `begin_replay()`, passes each batch of the replay to `replayed`, and
    calls `end_replay` after the last. It does so again whenever `receive` returns False, until a replay is complete.
    """

    def __init__(self) -> None:
        self.blocks: Blocks = set()  # in the prefix cache
        self.in_tiers: defaultdict[str, Blocks] = defaultdict(set)  # by medium
        self._next = FROM_THE_START
        self._after_replay = FROM_THE_START
        self._replayed = range(0)  # numbers that the last replay covers
        self._decode = msgspec.msgpack.Decoder(KVEventBatch).decode

    def receive(self, number: int, batch: bytes) -> bool:
        """Apply a published batch. False: it does not follow the last one; request a replay, which includes it."""
        if number in self._replayed:
            return True
        if number != self._next:
            return False
        self._apply(batch)
        self._next += 1
        return True

    def begin_replay(self) -> int:
        """The number to request a replay from. It stays the same until a replay is complete."""
        self._after_replay = self._next
        return self._next

    def replayed(self, number: int, batch: bytes) -> None:
        self._apply(batch)
        self._after_replay = number + 1

    def end_replay(self) -> None:
        self._replayed = range(max(self._next, self._after_replay - MAX_UNREAD), self._after_replay)
        self._next = self._after_replay

    def _apply(self, batch: bytes) -> None:
        for event in self._decode(batch).events:
            self._apply_event(event)

    def _apply_event(self, event: KVEvent) -> None:
        match event:
            case BlockStored():
                self._blocks_of(event.medium).update((each, event.group_idx or 0) for each in event.block_hashes)
            case BlockRemoved():
                gone = {(each, event.group_idx or 0) for each in event.block_hashes}
                self._blocks_of(event.medium).difference_update(gone)
            case AllBlocksCleared():
                self.blocks.clear()
                self.in_tiers.clear()

    def _blocks_of(self, medium: str | None) -> Blocks:
        return self.blocks if medium is None else self.in_tiers[medium]
