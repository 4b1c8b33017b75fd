"""Blocks on their way to and from the workers' tiers. Sans-I/O.

A transfer owns its blocks, like a sequence, until all ranks have answered it: nothing overwrites a block that is being
stored, and nothing else reads or writes one that is being loaded. Stores are made of blocks that have just been
published and can still be found; only a few are in flight, and blocks evicted meanwhile are not stored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from paged_serve.protocol.messages.loading.kv_tiers import (
    BlocksMoved,
    DropBlocks,
    LoadBlocks,
    OpenTier,
    StoreBlocks,
    TierContents,
    ToWorkerTier,
    pack_keys,
    unpack_keys,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.stats import KVTierStats

from ...requests import request
from ..block_pool import BlockPool
from .load_speed import LoadSpeed
from .tier_counts import TierCounts, tier_stats
from .tier_index import TierIndex
from .tier_search import TierHit

STORED_BYTES_IN_FLIGHT = 64 << 20
MAX_PENDING = 1 << 16  # published blocks that wait to be stored
FREE_PER_STORED = 4  # at most a quarter of the free blocks is in a store


@dataclass(slots=True, eq=False)
class Transfer:
    """A load if `sequence` is set, a drop if it has no blocks, otherwise a store."""

    blocks: list[int]
    keys: list[bytes]
    waits_for: set[int]  # ranks
    kept: list[int] = field(default_factory=list)  # cached blocks before and between the loaded ones
    sequence: request.Sequence | None = None  # of a load: the one whose blocks these are
    numbers: list[int] = field(default_factory=list)  # of a load: of these blocks in the sequence
    sent_s: float = math.inf
    failed: set[int] = field(default_factory=set)  # indices of `blocks`

    @property
    def drops(self) -> bool:
        """Whether the blocks with these keys are removed."""
        return self.sequence is None and not self.blocks

    @property
    def owned(self) -> list[int]:
        return [*self.kept, *self.blocks]

    @property
    def loaded(self) -> list[tuple[int, int, bytes]]:
        """The numbers, blocks and keys of what all ranks have loaded."""
        every = zip(self.numbers, self.blocks, self.keys, strict=True)
        return [each for index, each in enumerate(every) if index not in self.failed]


class KVTiers:
    """All transfers of one worker group, and the messages for it."""

    def __init__(self, pool: BlockPool, index: TierIndex, bytes_per_block: int):
        self.index = index
        self.transfers: dict[int, Transfer] = {}
        self.speed = LoadSpeed()
        self.loads, self.stores = TierCounts(), TierCounts()
        self.num_ranks = index.num_ranks
        self.bytes_per_block = bytes_per_block
        self._pool = pool
        self._most_stored = max(1, STORED_BYTES_IN_FLIGHT // max(1, bytes_per_block))
        self._pending: dict[int, bytes] = {}  # block -> key, in the order of publishing
        self._num_storing = 0  # blocks
        self._num_transfers = 0
        self._new: list[int] = []  # transfers that were not sent yet
        self.opened_s = math.inf  # when OpenTier was sent

    def published(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """These blocks can be found from now on; their contents are final."""
        for block, key in zip(blocks, keys, strict=True):
            if key not in self.index and len(self._pending) < MAX_PENDING:
                self._pending.pop(block, None)  # the block had other contents before
                self._pending[block] = key

    def drop(self, keys: Sequence[bytes]) -> None:
        """What was published with these keys so far may hold values that are not finite.

        The caller has removed it from the prefix cache. What is published later was computed again, and may be stored.
        """
        if not keys:
            return
        self.index.drop(keys)
        bad = set(keys)
        for transfer in self.transfers.values():
            if transfer.sequence is not None:
                transfer.failed.update(index for index, key in enumerate(transfer.keys) if key in bad)
        self._add(Transfer([], [*keys], self._ranks()))

    def load(self, sequence: request.Sequence, hit: TierHit) -> int:
        """Begin to load blocks; the caller has checked that they are free. Returns the number of the transfer."""
        self._pool.share(hit.cached)
        blocks = self._pool.allocate(len(hit.keys), (sequence.request.tenant.name,))
        return self._add(Transfer(blocks, hit.keys, self._ranks(), hit.cached, sequence, hit.numbers))

    def _ranks(self) -> set[int]:
        return set(range(self.num_ranks))

    def take_messages(self, epoch: int, now: float) -> list[ToWorkerTier]:
        """The messages to send now, to all ranks, in order."""
        messages: list[ToWorkerTier] = []
        if self.opened_s == math.inf:
            self.opened_s = now
            messages.append(OpenTier(epoch))
        if self._pending:
            self._begin_store()
        for number in self._new:
            transfer = self.transfers[number]
            transfer.sent_s = now
            messages.append(_message(epoch, number, transfer))
        self._new = []
        return messages

    def contents(self, message: TierContents) -> None:
        self.index.change(message.rank, unpack_keys(message.added), unpack_keys(message.removed))

    def moved(self, message: BlocksMoved, now: float) -> tuple[int, Transfer] | None:
        """Count an answer; the transfer, once all ranks have answered. The caller publishes and releases its blocks.

        Answers to unknown transfers are ignored.
        """
        transfer = self.transfers.get(message.transfer)
        if transfer is None:
            return None
        transfer.waits_for.discard(message.rank)
        transfer.failed.update(unpack_ids(message.failed))
        if transfer.waits_for:
            return None
        del self.transfers[message.transfer]
        num_blocks, seconds = len(transfer.blocks), now - transfer.sent_s
        if transfer.drops:
            self.index.end_drop(transfer.keys)
        elif transfer.sequence is not None:
            self.speed.loaded(self.bytes_per_block * (num_blocks - len(transfer.failed)), seconds)
            self.loads.ended(num_blocks, len(transfer.failed), seconds)
        else:
            self._num_storing -= num_blocks
            self.stores.ended(num_blocks, len(transfer.failed), seconds)
        return message.transfer, transfer

    def continue_from(self, before: "KVTiers") -> None:
        """The tiers of new workers are measured, and counted, together with those of the former ones."""
        self.speed, self.loads, self.stores = before.speed, before.loads, before.stores
        self.drop([*before.index.dropped])  # the workers may have died before they did it

    def stats(self) -> KVTierStats:
        return tier_stats(self.index.num_held, self.loads, self.stores, self.bytes_per_block, self.num_ranks)

    def owned(self) -> list[list[int]]:
        """The blocks of each transfer."""
        return [transfer.owned for transfer in self.transfers.values()]

    def _begin_store(self) -> None:
        room = min(self._most_stored - self._num_storing, self._pool.num_free // FREE_PER_STORED)
        if room <= 0:
            return
        blocks, keys, pool = list[int](), list[bytes](), self._pool
        for block, key in list(islice(self._pending.items(), room)):
            if key in self.index.dropped:
                continue  # it is new, and the old one is being removed
            del self._pending[block]
            if pool.hash_of(block) == key and key not in self.index:
                blocks.append(block)
                keys.append(key)
        if blocks:
            pool.share(blocks)
            self._num_storing += len(blocks)
            self._add(Transfer(blocks, keys, self._ranks()))

    def _add(self, transfer: Transfer) -> int:
        self._num_transfers += 1
        self.transfers[self._num_transfers] = transfer
        self._new.append(self._num_transfers)
        return self._num_transfers

    def check(self) -> None:
        self.index.check()
        stores = [transfer for transfer in self.transfers.values() if transfer.sequence is None]
        assert self._num_storing == sum(len(each.blocks) for each in stores), "the stored blocks are miscounted"
        assert all(transfer.waits_for for transfer in self.transfers.values()), "a transfer is over but not removed"


def _message(epoch: int, number: int, transfer: Transfer) -> StoreBlocks | LoadBlocks | DropBlocks:
    keys = pack_keys(transfer.keys)
    if transfer.drops:
        return DropBlocks(epoch, number, keys)
    kind = StoreBlocks if transfer.sequence is None else LoadBlocks
    return kind(epoch, number, pack_ids(transfer.blocks), keys)
