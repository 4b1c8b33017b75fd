"""A tier without a disk, for simulations: it outlives workers and cores, loses blocks, tears them, and answers late.

A stored block is a copy of its slots at some time between the message and the answer. A load fills the block's slots
at such a time, with anything where a rank finds its share torn; reading that block raises AssertionError. Every
message is handled after the steps sent before it, at any time during later steps.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from paged_serve.protocol.messages.loading.kv_tiers import (
    BlocksMoved,
    DropBlocks,
    FromWorkerTier,
    LoadBlocks,
    OpenTier,
    StoreBlocks,
    TierContents,
    ToWorkerTier,
    pack_keys,
    unpack_keys,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids

from .fake_cache import NOT_REPORTED, FakeCache
from .fake_worker import FakeWorker

GARBAGE = -1  # in a slot
LATE_TICKS = 700  # longer than a sequence waits for a load
COUNTS = ("stores", "tier_loads", "torn_blocks", "late_answers")


@dataclass(slots=True)
class StoredBlock:
    """Contents and, for each rank that has a share of it, whether that share is whole."""

    slots: list[int]
    written_for: tuple[str, int]
    poisoned: list[int]  # offsets
    is_whole: dict[int, bool] = field(default_factory=dict)


class FakeTier:
    """The tiers of all ranks; they store and lose blocks independently."""

    def __init__(self, rng: random.Random, num_ranks: int):
        self._rng = rng
        self._num_ranks = num_ranks
        self._blocks: dict[bytes, StoredBlock] = {}
        self._messages: deque[tuple[int, ToWorkerTier]] = deque()  # with the last step sent before
        self._answers: deque[tuple[int, FromWorkerTier]] = deque()  # with the tick when they arrive
        self._tick = 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self._lateness = rng.choice((0.0, 0.02))
        self._tearing = rng.choice((0.0, 0.02, 0.2))

    @property
    def is_idle(self) -> bool:
        return not (self._messages or self._answers)

    def restart(self) -> None:
        """The workers died: what was not answered is lost. A store may be half done, a load matters no more."""
        for _, message in self._messages:
            if isinstance(message, StoreBlocks) and self._rng.random() < 0.5:
                for key in unpack_keys(message.keys):
                    if self._rng.random() < 0.3:
                        self._blocks.setdefault(key, StoredBlock([], ("", 0), [])).is_whole[0] = False
        self._messages.clear()
        self._answers.clear()

    def receive(self, message: ToWorkerTier, last_step: int) -> None:
        self._messages.append((last_step, message))

    def advance(self, worker: FakeWorker, next_step: int | None) -> list[FromWorkerTier]:
        """Handle some messages; `next_step`: the first that the worker has not computed. Returns due answers."""
        rng = self._rng
        if self._messages and (next_step is None or next_step > self._messages[0][0]) and rng.random() < 0.5:
            _, message = self._messages.popleft()
            self._handle(worker.cache, message)
        if self._blocks and rng.random() < 0.02:
            self._lose(rng.choice(list(self._blocks)), worker.epoch)
        self._tick += 1
        due = []
        while self._answers and self._answers[0][0] <= self._tick:
            due.append(self._answers.popleft()[1])
        return due

    def _handle(self, cache: FakeCache, message: ToWorkerTier) -> None:
        match message:
            case OpenTier(epoch=epoch):
                for rank in range(self._num_ranks):
                    own = [key for key, stored in self._blocks.items() if rank in stored.is_whole]
                    self._answer(TierContents(epoch, rank, pack_keys(own)))
            case DropBlocks(epoch=epoch, keys=keys, transfer=transfer):
                gone = [key for key in unpack_keys(keys) if self._blocks.pop(key, None)]
                for rank in range(self._num_ranks):
                    self._answer(TierContents(epoch, rank, removed=pack_keys(gone)))
                    self._answer(BlocksMoved(epoch, rank, transfer))
            case StoreBlocks():
                self._store(cache, message)
            case LoadBlocks():
                self._load(cache, message)

    def _store(self, cache: FakeCache, message: StoreBlocks) -> None:
        self.counts["stores"] += 1
        ids, keys = unpack_ids(message.block_ids).tolist(), unpack_keys(message.keys)
        for rank in range(self._num_ranks):
            added, failed = [], []
            for index, (block, key) in enumerate(zip(ids, keys, strict=True)):
                if self._rng.random() < 0.1:
                    failed.append(index)
                    continue
                stored = self._blocks.setdefault(key, StoredBlock([], ("", 0), []))
                if not any(stored.is_whole.values()):
                    stored.slots, stored.written_for = [*cache.slots[block]], cache.written_for[block]
                    stored.poisoned = [offset for at, offset in cache.poisoned if at == block]
                stored.is_whole[rank] = self._rng.random() >= self._tearing
                added.append(key)
            self._answer(TierContents(message.epoch, rank, pack_keys(added)))
            self._answer(BlocksMoved(message.epoch, rank, message.transfer, pack_ids(failed)))

    def _load(self, cache: FakeCache, message: LoadBlocks) -> None:
        self.counts["tier_loads"] += 1
        ids, keys = unpack_ids(message.block_ids).tolist(), unpack_keys(message.keys)
        failed: list[list[int]] = [[] for _ in range(self._num_ranks)]
        for index, (block, key) in enumerate(zip(ids, keys, strict=True)):
            stored = self._blocks.get(key)
            for slot in [slot for slot in cache.poisoned if slot[0] == block]:
                del cache.poisoned[slot]
            wrong = [rank for rank in range(self._num_ranks) if stored is None or not stored.is_whole.get(rank)]
            if stored is None or wrong:
                cache.slots[block] = [GARBAGE] * cache.block_size
                for rank in wrong:
                    failed[rank].append(index)
                self.counts["torn_blocks"] += 1
                continue
            cache.slots[block], cache.written_for[block] = [*stored.slots], stored.written_for
            cache.poisoned |= {(block, offset): NOT_REPORTED for offset in stored.poisoned}
        is_late = self._rng.random() < self._lateness
        self.counts["late_answers"] += is_late
        for rank in range(self._num_ranks):
            gone = [keys[index] for index in failed[rank]]
            for key in gone:
                if (found := self._blocks.get(key)) is not None:
                    found.is_whole.pop(rank, None)
                    if not found.is_whole:
                        del self._blocks[key]
            self._answer(TierContents(message.epoch, rank, removed=pack_keys(gone)))
            self._answer(BlocksMoved(message.epoch, rank, message.transfer, pack_ids(failed[rank])), is_late=is_late)

    def _lose(self, key: bytes, epoch: int) -> None:
        """A rank evicts a block, or finds out only when it is loaded."""
        rank = self._rng.randrange(self._num_ranks)
        stored = self._blocks[key]
        if stored.is_whole.pop(rank, None) is not None and self._rng.random() < 0.5:
            self._answer(TierContents(epoch, rank, removed=pack_keys([key])))
        if not stored.is_whole:
            del self._blocks[key]

    def _answer(self, message: FromWorkerTier, *, is_late: bool = False) -> None:
        """Answers arrive in order, so a late one delays all after it."""
        before = self._answers[-1][0] if self._answers else 0
        delay = LATE_TICKS if is_late else self._rng.choice((0, 0, 1, 5))
        self._answers.append((max(before, self._tick + delay), message))
