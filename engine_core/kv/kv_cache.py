"""Allocates KV blocks to sequences and releases them."""

from collections.abc import Collection, Iterable
from itertools import chain, zip_longest

from paged_serve.protocol.kv_events.messages import MEDIUM_STORAGE

from ..requests.request import Sequence
from .block_copies import BlockCopies
from .block_pool import BlockPool
from .kv_events import KVEvents
from .kv_group import RELEASED, KVGroups
from .prefix_cache import PrefixCache
from .tails import Prefix
from .tiers.tier_index import TierIndex
from .tiers.tier_search import TierHit
from .tiers.tiers import KVTiers, Transfer

Extensions = tuple[list[Sequence], list[int], list[int]]  # of which sequence, which table, the new block


class KVCache:
    """Block tables of all sequences, one for each KV group."""

    def __init__(
        self, num_blocks: int, groups: KVGroups, enable_prefix_caching: bool = True, events: KVEvents | None = None
    ):
        """`events`: told what the prefix cache can find; None: nothing follows."""
        self.events = events
        self.pool = BlockPool(num_blocks, events)
        self.groups = groups
        self.num_groups = len(groups)
        self.block_size = groups.block_size  # tokens
        self.capacity_tokens = groups.capacity_tokens(num_blocks)  # the longest sequence that fits when it is alone
        self.prefix_cache = PrefixCache(self.pool, groups, enable_prefix_caching, events)
        self.copies = BlockCopies(self.pool)
        self.tiers: KVTiers | None = None

    def open_tiers(self, num_ranks: int, bytes_per_block: int, medium: str = MEDIUM_STORAGE) -> None:
        """From now on, store what is published, and find what is stored; nothing without a prefix cache.

        `medium`: as events name it.
        """
        if not self.prefix_cache.enabled:
            return
        before = self.tiers
        self.tiers = self.prefix_cache.tiers = KVTiers(
            self.pool, TierIndex(num_ranks, self.events, medium), bytes_per_block
        )
        if before is not None:
            self.tiers.continue_from(before)

    def admit(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> bool:
        """Allocate blocks for all known tokens of `sequence`, sharing computed ones; all or nothing.

        At least its last token remains to be computed. `sibling` is running and its common prompt is fully planned. In
        a group with a window, the blocks cover at most the first chunk. Returns False if fewer than `watermark` blocks
        would stay free.
        """
        return any(self._admit(sequence, prefix, watermark) for prefix in self._find(sequence, sibling))

    def _admit(self, sequence: Sequence, prefix: Prefix, watermark: int) -> bool:
        tables, position = prefix.tables, prefix.num_tokens
        num_blocks = -(-sequence.num_tokens // self.block_size)
        num_new = [
            group.end(position, num_blocks) - len(table) for group, table in zip(self.groups.math, tables, strict=True)
        ]
        shared, sources = _blocks_of(tables), self.copies.sources(prefix.tail)
        if self.pool.num_free - self.pool.num_free_among([*shared, *sources]) - sum(num_new) < watermark:
            return False
        self.pool.share(shared)
        self.copies.hold(sources)
        new = self.pool.allocate(sum(num_new), (sequence.request.tenant.name,))
        for table, count in zip(tables, num_new, strict=True):
            table += new[:count]
            del new[:count]
        if sources:
            self.copies.add(sources, [table[position // self.block_size] for table in tables])
        sequence.block_tables = tuple(tables)
        sequence.num_released = self.groups.first_needed(position)
        sequence.num_published = position // self.block_size
        sequence.num_scheduled = sequence.num_applied = position
        return True

    def shortage(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> tuple[int, set[int]]:
        """An upper bound on the blocks missing for `admit` (0 or less: none), and the blocks it certainly shares.

        The shared prefix may grow while other sequences compute. Full groups then need fewer new blocks; a window
        moves, possibly to where nothing is shared, so none of its blocks counts as shared.
        """
        tables = self._find(sequence, sibling)[-1].tables
        shared = [block for index in self.groups.full for block in tables[index]]
        num_new = self.groups.num_blocks_for(sequence.num_tokens) - len(shared)
        return watermark + num_new + self.pool.num_free_among(shared) - self.pool.num_free, set(shared)

    def find_in_tiers(self, sequence: Sequence) -> TierHit | None:
        """What can be loaded so that more of `sequence` is cached."""
        self.prefix_cache.hash_blocks(sequence, sequence.num_tokens)
        num_tokens = sequence.num_tokens - 1  # the last one remains to be computed
        limit = num_tokens // self.block_size
        return self.prefix_cache.find_in_tiers(sequence, sequence.request.sharer, limit)

    @property
    def has_transfers(self) -> bool:
        """Whether blocks belong to transfers, until workers have answered."""
        return self.tiers is not None and bool(self.tiers.transfers)

    def has_room_for(self, sequence: Sequence, hit: TierHit, watermark: int) -> bool:
        """Whether `sequence` could be admitted now, whatever is loaded of it."""
        num_new = self.groups.num_blocks_for(sequence.num_tokens) - len(hit.cached)
        return self.pool.num_free - self.pool.num_free_among(hit.cached) - num_new >= watermark

    def end_transfer(self, transfer: Transfer) -> None:
        """Release the blocks of a transfer that all ranks have answered, and publish what they loaded."""
        if transfer.sequence is not None:
            self.prefix_cache.publish_loaded(transfer.sequence, transfer.loaded)
        self.pool.release(reversed(transfer.owned))

    def num_owned(self, sequence: Sequence) -> int:
        return sum(map(len, sequence.block_tables)) - sum(sequence.num_released)

    def num_owned_alone(self, sequence: Sequence, besides: set[int]) -> int:
        """Blocks that become free if `sequence` is preempted, except those in `besides`."""
        return self.pool.num_owned_once(_blocks_of(sequence.block_tables), besides)

    def release_behind(self, sequences: Iterable[Sequence]) -> None:
        """Release the blocks that are behind the windows once all planned steps are computed.

        Workers run steps in order, so the next step may overwrite these blocks: all steps that read them come first.
        """
        behind: list[int] = []
        for sequence in sequences:
            for group, indices in self.groups.by_kind:
                length, start = len(sequence.block_tables[indices[0]]), sequence.num_released[indices[0]]
                position = length * self.block_size if sequence.joined_step else sequence.span[0]
                if (end := group.first_needed(position)) > start:
                    self.prefix_cache.publish_behind(sequence, indices, start, end)
                    for index in indices:
                        table = sequence.block_tables[index]
                        behind += reversed(table[start:end])
                        table[start:end] = [RELEASED] * (end - start)
                        sequence.num_released[index] = end
        self.pool.release(behind)

    def num_wanted(self, sequences: list[Sequence], *, decoding: bool) -> list[int]:
        """How many blocks `extend` would allocate to each sequence. `decoding`: all are in the decode set."""
        if decoding:
            return [self.num_groups] * len(sequences)
        return [self.num_groups if each.joined_step else sum(self._num_wanted(each)) for each in sequences]

    def extend(self, sequences: list[Sequence], *, decoding: bool) -> Extensions:
        """Allocate one block per group to sequences that decode, and to others the blocks of their next chunk."""
        num_groups = self.num_groups
        if num_groups == 1 and decoding:
            return sequences, [sequence.row for sequence in sequences], self._extend(sequences, 0)
        extended: list[Sequence] = []
        tables: list[int] = []
        blocks: list[int] = []
        decode_rows = [sequence for sequence in sequences if sequence.joined_step]
        others = [(sequence, self._num_wanted(sequence)) for sequence in sequences if not sequence.joined_step]
        for index in range(num_groups):
            owners = decode_rows + [sequence for sequence, wanted in others for _ in range(wanted[index])]
            extended += owners
            tables += [sequence.row * num_groups + index for sequence in owners]
            blocks += self._extend(owners, index)
        return extended, tables, blocks

    def _extend(self, sequences: list[Sequence], index: int) -> list[int]:
        """Allocate one more block in this group to each sequence; returns the new blocks."""
        blocks = self.pool.allocate(len(sequences), [sequence.request.tenant.name for sequence in sequences])
        for sequence, block in zip(sequences, blocks, strict=True):
            sequence.block_tables[index].append(block)
        return blocks

    def _num_wanted(self, sequence: Sequence) -> list[int]:
        """How many blocks `sequence` needs in each group before its next chunk or verification."""
        position, num_tokens = sequence.span
        num_blocks = -(-num_tokens // self.block_size)
        return [
            max(0, group.end(position, num_blocks) - len(table))
            for group, table in zip(self.groups.math, sequence.block_tables, strict=True)
        ]

    def release(self, sequence: Sequence) -> None:
        """Release all blocks. The prefix cache then also finds the generated tokens, for the next turn of a chat."""
        if not sequence.num_nans:
            self.prefix_cache.publish_all(sequence)
        # the tail is evicted first: a shared prefix outlives it
        self.pool.release(reversed(_blocks_of(sequence.block_tables)))
        sequence.block_tables = ()
        sequence.num_released = []

    def invalidate(self, sequence: Sequence) -> None:
        """Remove the blocks of `sequence` from the prefix cache and stop sharing them: they may hold NaN."""
        self.pool.invalidate(_blocks_of(sequence.block_tables))
        self.prefix_cache.invalidate_behind(sequence)
        self.prefix_cache.drop_in_tiers(sequence)

    def reset(self) -> None:
        """Start with an empty pool: the contents were lost with the workers. No sequence may own a block.

        All transfers are lost, too; the tiers are not.
        """
        if self.events is not None:
            self.events.cleared()
        self.pool = BlockPool(self.pool.num_blocks, self.events)
        self.prefix_cache = PrefixCache(self.pool, self.groups, self.prefix_cache.enabled, self.events)
        self.copies = BlockCopies(self.pool)
        if self.tiers is not None:
            self.open_tiers(self.tiers.num_ranks, self.tiers.bytes_per_block, self.tiers.index.medium)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless the pool's counts agree with the tables of `sequences`."""
        sequences = list(sequences)
        transfers = [] if self.tiers is None else self.tiers.owned()
        self.pool.check([*(_blocks_of(sequence.block_tables) for sequence in sequences), *transfers])
        if self.tiers is not None:
            self.tiers.check()
        for sequence in sequences:
            assert len(sequence.block_tables) == self.num_groups, "a group has no table"
            for table, released, group in zip(
                sequence.block_tables, sequence.num_released, self.groups.math, strict=True
            ):
                assert table[:released] == [RELEASED] * released, "a released block is in a table"
                assert RELEASED not in table[released:], "a block is missing"
                assert len(table) - released <= group.end(0, len(table)), "a row holds more than its window and a chunk"

    def _find(self, sequence: Sequence, sibling: Sequence | None) -> list[Prefix]:
        """What of `sequence` need not be computed; the longest prefix first. The last one needs no copy."""
        self.prefix_cache.hash_blocks(sequence, sequence.num_tokens)
        return self.prefix_cache.find(sequence, sibling, (sequence.num_tokens - 1) // self.block_size)


def _blocks_of(tables: Collection[list[int]]) -> list[int]:
    """The blocks of all groups, by position."""
    first = next(iter(tables), [])
    if len(tables) == 1 and RELEASED not in first[:1]:
        return first
    return [block for block in chain.from_iterable(zip_longest(*tables, fillvalue=RELEASED)) if block != RELEASED]
