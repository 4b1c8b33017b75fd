"""Gives sequences their blocks and takes them back."""

from collections.abc import Iterable

from ..requests.request import Sequence
from .block_pool import BlockPool
from .prefix_cache import PrefixCache


class KVCache:
    """Block tables of all sequences."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True):
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size  # tokens
        self.prefix_cache = PrefixCache(self.pool, block_size, enable_prefix_caching)

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone."""
        return self.pool.num_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> bool:
        """Give `sequence` blocks for all its known tokens, sharing what is computed already; all or nothing.

        At least its last token remains to be computed. `sibling` runs and has planned the common prompt.
        False when fewer than `watermark` blocks would stay free.
        """
        shared, num_new, num_left = self._fit(sequence, sibling)
        if num_left < watermark:
            return False
        self.pool.share(shared)
        sequence.block_ids = shared + self.pool.allocate(num_new, (sequence.request.tenant.name,))
        sequence.num_published = len(shared)
        sequence.num_scheduled = sequence.num_applied = len(shared) * self.block_size
        return True

    def shortage(self, sequence: Sequence, sibling: Sequence | None, watermark: int) -> tuple[int, set[int]]:
        """How many blocks are missing for `admit` (none: 0 or less), and which it would share."""
        shared, _, num_left = self._fit(sequence, sibling)
        return watermark - num_left, set(shared)

    def num_owned_alone(self, sequence: Sequence, besides: set[int]) -> int:
        """Blocks that its preemption makes free, those in `besides` not counted."""
        return self.pool.num_owned_once(sequence.block_ids, besides)

    def extend(self, sequences: list[Sequence]) -> list[int]:
        """One more block for each of `sequences`; returns the new blocks."""
        blocks = self.pool.allocate(len(sequences), [sequence.request.tenant.name for sequence in sequences])
        for sequence, block in zip(sequences, blocks, strict=True):
            sequence.block_ids.append(block)
        return blocks

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back. What was generated can be found again from here on: a chat's next turn does."""
        if not sequence.num_nans:
            self.prefix_cache.publish(sequence, sequence.num_kv_applied)
        self.pool.release(reversed(sequence.block_ids))  # the tail is evicted first: a shared prefix outlives it
        sequence.block_ids = []

    def invalidate(self, sequence: Sequence) -> None:
        """The contents of its blocks may not be found or shared any more: they may hold NaN."""
        self.pool.invalidate(sequence.block_ids)

    def reset(self) -> None:
        """The blocks' contents are gone with the workers that held them. No sequence owns any."""
        self.pool = BlockPool(self.pool.num_blocks)
        self.prefix_cache = PrefixCache(self.pool, self.block_size, self.prefix_cache.enabled)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless the pool's books agree with the tables of `sequences`."""
        self.pool.check([sequence.block_ids for sequence in sequences])

    def _fit(self, sequence: Sequence, sibling: Sequence | None) -> tuple[list[int], int, int]:
        """Blocks to share, how many new ones, and how many blocks would stay free (below 0: too few)."""
        num_tokens = sequence.num_tokens
        self.prefix_cache.hash_blocks(sequence, num_tokens)
        shared = self.prefix_cache.find(sequence, sibling, (num_tokens - 1) // self.block_size)
        num_new = self.num_blocks_for(num_tokens) - len(shared)
        return shared, num_new, self.pool.num_free - self.pool.num_free_among(shared) - num_new
