"""Gives sequences their blocks and takes them back."""

from collections.abc import Iterable

from ..requests.request import Sequence
from .block_pool import BlockPool
from .prefix_cache import PrefixCache


class KVCache:
    """Block tables of all sequences. A sequence has one table per KV group; all tables have the same length."""

    def __init__(self, num_blocks: int, block_size: int, num_groups: int = 1, enable_prefix_caching: bool = True):
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size  # tokens
        self.num_groups = num_groups
        self.prefix_cache = PrefixCache(self.pool, block_size, num_groups, enable_prefix_caching)

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone."""
        return self.pool.num_blocks // self.num_groups * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return self.num_groups * -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> bool:
        """Give `sequence` blocks for all its known tokens, sharing what is computed already; all or nothing.

        At least its last token remains to be computed. `sibling` runs and has planned the common prompt.
        False when fewer than `watermark` blocks would stay free.
        """
        shared, num_new, num_left = self._fit(sequence, sibling)
        if num_left < watermark:
            return False
        num_shared = len(shared[0])
        for blocks in shared:
            self.pool.share(blocks)
        tenants = (sequence.request.tenant.name,)
        sequence.block_ids = tuple(blocks + self.pool.allocate(num_new, tenants) for blocks in shared)
        sequence.num_published = num_shared
        sequence.num_scheduled = sequence.num_applied = num_shared * self.block_size
        return True

    def shortage(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> tuple[int, set[int]]:
        """How many blocks are missing for `admit` (none: 0 or less), and which it would share."""
        shared, _, num_left = self._fit(sequence, sibling)
        return watermark - num_left, {block for blocks in shared for block in blocks}

    def num_owned_alone(self, sequence: Sequence, besides: set[int]) -> int:
        """Blocks that its preemption makes free, those in `besides` not counted."""
        return sum(self.pool.num_owned_once(blocks, besides) for blocks in sequence.block_ids)

    def extend(self, sequences: list[Sequence]) -> list[list[int]]:
        """One more block per group for each of `sequences`; returns the new blocks by group."""
        new_blocks = []
        tenants = [sequence.request.tenant.name for sequence in sequences]
        for group in range(self.num_groups):
            blocks = self.pool.allocate(len(sequences), tenants)
            for sequence, block in zip(sequences, blocks, strict=True):
                sequence.block_ids[group].append(block)
            new_blocks.append(blocks)
        return new_blocks

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back. What was generated can be found again from here on: a chat's next turn does."""
        if not sequence.num_nans:
            self.prefix_cache.publish(sequence, sequence.num_kv_applied)
        for blocks in sequence.block_ids:
            self.pool.release(reversed(blocks))  # the tail is forgotten first: a shared prefix outlives it
        sequence.block_ids = ()

    def invalidate(self, sequence: Sequence) -> None:
        """The contents of its blocks may not be found or shared any more: they may hold NaN."""
        for blocks in sequence.block_ids:
            self.pool.invalidate(blocks)

    def reset(self) -> None:
        """The blocks' contents are gone with the workers that held them. No sequence owns any."""
        self.pool = BlockPool(self.pool.num_blocks)
        self.prefix_cache = PrefixCache(self.pool, self.block_size, self.num_groups, self.prefix_cache.enabled)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless the pool's books agree with the tables of `sequences`."""
        owners = list(sequences)
        for sequence in owners:
            assert len(set(map(len, sequence.block_ids))) == 1, f"stream {sequence.stream_id}: uneven block tables"
        self.pool.check([blocks for sequence in owners for blocks in sequence.block_ids])

    def _fit(self, sequence: Sequence, sibling: Sequence | None) -> tuple[list[list[int]], int, int]:
        """Blocks to share per group, new blocks a group, and how many blocks would stay free (below 0: too few)."""
        num_tokens = sequence.num_tokens
        self.prefix_cache.hash_blocks(sequence, num_tokens)
        shared = self.prefix_cache.find(sequence, sibling, (num_tokens - 1) // self.block_size)
        num_new = -(-num_tokens // self.block_size) - len(shared[0])
        num_left = self.pool.num_free - sum(map(self.pool.num_free_among, shared)) - num_new * self.num_groups
        return shared, num_new, num_left
