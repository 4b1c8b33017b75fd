"""Gives sequences their blocks and takes them back; decides which contents may be found again."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from paged_serve.protocol.block_hash import chain_blocks

from .block_pool import BlockPool
from .request import Sequence


class KVCache:
    """Block tables of all sequences. A sequence has one table per KV group; all tables have the same length."""

    def __init__(self, num_blocks: int, block_size: int, num_groups: int = 1, enable_prefix_caching: bool = True):
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size  # tokens
        self.num_groups = num_groups
        self.enable_prefix_caching = enable_prefix_caching

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

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Let others find the full blocks among the first `num_tokens` tokens, whose results were applied."""
        if not self.enable_prefix_caching:
            return
        start, end = sequence.num_published, num_tokens // self.block_size
        if end > start:
            self._name_blocks(sequence, num_tokens)
            for group, blocks in enumerate(sequence.block_ids):
                self.pool.publish(blocks[start:end], _group_names(sequence.block_names[start:end], group))
            sequence.num_published = end

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back. What was generated can be found again from here on: a chat's next turn does."""
        if not sequence.num_nans:
            self.publish(sequence, sequence.num_kv_applied)
        for blocks in sequence.block_ids:
            self.pool.release(reversed(blocks))  # the tail is forgotten first: a shared prefix outlives it
        sequence.block_ids = ()

    def forget(self, sequence: Sequence) -> None:
        """Nobody may find or share the contents of its blocks any more: they are suspect."""
        for blocks in sequence.block_ids:
            self.pool.suspect(blocks)

    def forget_names(self, sequence: Sequence) -> None:
        """As `forget`, for one that has no blocks any more, or others: what it has left behind is suspect."""
        for group in range(self.num_groups):
            self.pool.suspect_names(_group_names(sequence.block_names, group))

    def reset(self) -> None:
        """The blocks' contents are gone with the workers that held them. No sequence owns any."""
        self.pool = BlockPool(self.pool.num_blocks)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless the pool's books agree with the tables of `sequences`."""
        owners = list(sequences)
        for sequence in owners:
            assert len(set(map(len, sequence.block_ids))) == 1, f"stream {sequence.stream_id}: uneven block tables"
        self.pool.check([blocks for sequence in owners for blocks in sequence.block_ids])

    def _name_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        names = sequence.block_names
        start, end = len(names) * self.block_size, num_tokens - num_tokens % self.block_size
        if self.enable_prefix_caching and end > start:
            parent = names[-1] if names else sequence.request.chain_root
            names += chain_blocks(parent, sequence.token_bytes(start, end), self.block_size)

    def _fit(self, sequence: Sequence, sibling: Sequence | None) -> tuple[list[list[int]], int, int]:
        """Blocks to share per group, new blocks a group, and how many blocks would stay free (below 0: too few)."""
        num_tokens = sequence.num_tokens
        self._name_blocks(sequence, num_tokens)
        shared = self._find_shared(sequence, sibling, (num_tokens - 1) // self.block_size)
        num_new = -(-num_tokens // self.block_size) - len(shared[0])
        num_left = self.pool.num_free - sum(map(self.pool.num_free_among, shared)) - num_new * self.num_groups
        return shared, num_new, num_left

    def _find_shared(self, sequence: Sequence, sibling: Sequence | None, limit: int) -> list[list[int]]:
        """Per group, the blocks of the longest prefix that exists already, at most `limit` long."""
        found: list[list[int]] = [[] for _ in range(self.num_groups)]
        if self.enable_prefix_caching and sequence.may_read_cache:
            names = sequence.block_names[:limit]
            found = [self.pool.find(_group_names(names, group)) for group in range(self.num_groups)]
        length = min(map(len, found))
        if sibling is not None and not sequence.num_nans:
            num_common = min(limit, sequence.request.num_shareable_tokens(self.block_size) // self.block_size)
            num_common = min(num_common, *map(self.pool.num_trusted, sibling.block_ids))
            if num_common > length:
                found, length = [blocks[:num_common] for blocks in sibling.block_ids], num_common
        return [blocks[:length] for blocks in found]


def _group_names(names: Items[bytes], group: int) -> Items[bytes]:
    return names if group == 0 else [name + bytes((group,)) for name in names]
