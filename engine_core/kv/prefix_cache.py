"""The prefix cache finds full blocks by a chain of hashes over their tokens and all tokens before them, and after them
the partial last block of an earlier sequence (tails.py).

A prefix can be shared if each group has the blocks that the next token reads: all of them, those of its window,
those of its attention chunk, or the last one, which holds the state at the prefix's end.
"""

from collections import abc
from collections.abc import Callable, Iterable

from paged_serve.protocol.block_hash import chain_blocks

from ..requests.request import Sequence
from .block_pool import BlockPool
from .kv_events import KVEvents
from .kv_group import RELEASED, KVGroups, group_of, keys_of
from .tails import Prefix, Tails
from .tiers.tier_search import IN_TIER, TierHit, find_hit
from .tiers.tiers import KVTiers


class PrefixCache:
    """Finds and publishes the full blocks of sequences in `pool`."""

    def __init__(self, pool: BlockPool, groups: KVGroups, enabled: bool, events: KVEvents | None = None):
        self.enabled = enabled
        self._events = events
        self._pool = pool
        self._groups = groups
        self._block_size = groups.block_size  # tokens
        self._tails = Tails(pool, groups)
        self.tiers: KVTiers | None = None  # told what can be found

    def hash_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        """Extend the sequence's hashes to all full blocks among its first `num_tokens` tokens."""
        hashes = sequence.block_hashes
        start, end = len(hashes) * self._block_size, num_tokens - num_tokens % self._block_size
        if self.enabled and end > start:
            parent = hashes[-1] if hashes else sequence.request.chain_root
            hashes += chain_blocks(parent, sequence.token_bytes(start, end), self._block_size)

    def find(self, sequence: Sequence, sibling: Sequence | None, limit: int) -> list[Prefix]:
        """The longest prefix that is already computed, in whole blocks at most `limit`.

        A longer one that ends within a block, which is to be copied, precedes it in the result. `sibling` is running
        and its common prompt is fully planned.
        """
        may_read, tails = self.enabled and sequence.may_read_cache, list[Prefix | None]()
        hashes = sequence.block_hashes[:limit] if may_read else []
        found, num_full = self._find_cached(hashes)
        if may_read:
            tails.append(self._tails.find(sequence, hashes[:num_full], len(found[0])))
        if sibling is not None and not sequence.num_nans:
            num_shared = sequence.request.num_shareable_tokens
            num_common = min(limit, num_shared // self._block_size)
            num_common = min(num_common, *map(self._pool.num_valid, sibling.block_tables))
            if num_common > len(found[0]):
                common = [table[:num_common] for table in sibling.block_tables]
                common = self._cut(common, num_common, lambda table, index: common[table][index])
                found = max(found, common, key=lambda tables: len(tables[0]))
            source = sequence.request.fork if self._groups.has_states else sibling
            tails.append(None if source is None else self._tails.of_sibling(source, num_shared))
        whole = Prefix(found, len(found[0]) * self._block_size)
        longest = max(filter(None, tails), key=lambda prefix: prefix.num_tokens, default=whole)
        return [longest, whole] if longest.num_tokens > whole.num_tokens else [whole]

    def _find_cached(self, hashes: list[bytes]) -> tuple[list[list[int]], int]:
        """The beginnings of the block tables, and how many blocks the full groups have."""
        found: list[list[int]] = [[] for _ in self._groups.math]
        for index in self._groups.full:
            found[index] = self._pool.find(keys_of(index, hashes))
            hashes = hashes[: len(found[index])]
        num_found = len(hashes)
        if not self._groups.windows:
            return [table[:num_found] for table in found], num_found
        keys = [keys_of(index, hashes) for index in range(len(found))]
        for index in self._groups.windows:
            found[index] = [RELEASED] * num_found
        return self._cut(found, num_found, lambda table, index: self._pool.block_of(keys[table][index])), num_found

    def _cut(self, tables: list[list[int]], num_blocks: int, block_of: Callable[[int, int], int]) -> list[list[int]]:
        """The longest prefix of at most `num_blocks` blocks at whose end each window or attention chunk is whole.

        `block_of` (table, index) is called at most once per block and returns RELEASED for a missing block. A missing
        block ends the search above it: every longer candidate would need it too, as what is needed never moves back.
        """
        windows = self._groups.windows
        end = index = num_blocks
        first = self._groups.first_needed(end * self._block_size)
        while windows and index > min(first[table] for table in windows):
            index -= 1
            for table in windows:
                if index >= first[table]:
                    tables[table][index] = block = block_of(table, index)
                    if block == RELEASED:
                        end = index
                        first = self._groups.first_needed(end * self._block_size)
                        break
        for table in windows:
            tables[table][: first[table]] = [RELEASED] * first[table]
        return [table[:end] for table in tables]

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable; their results were applied."""
        if not self.enabled:
            return
        start, end = sequence.num_published, num_tokens // self._block_size
        if end > start:
            self.hash_blocks(sequence, num_tokens)
            for index in range(len(sequence.block_tables)):
                self._publish(sequence, index, start, end)
            sequence.num_published = end

    def publish_all(self, sequence: Sequence) -> None:
        """Make all blocks of `sequence` findable, the partial last one included: it is about to release them."""
        if self.enabled:
            self.publish(sequence, sequence.num_kv_applied)
            self._tails.publish(sequence)

    def publish_behind(self, sequence: Sequence, indices: Iterable[int], start: int, end: int) -> None:
        """Make blocks [start, end) of these tables findable before they are released behind the window.

        The steps that compute them may still be in flight, but they were sent and their tokens are known: workers run
        steps in order, so every reader comes after the writes. Blocks filled by decode steps have no hash until the
        step is applied, so none of them is published here.
        """
        start, end = max(start, sequence.num_published), min(end, len(sequence.block_hashes))
        if end > start:
            for index in indices:
                self._publish(sequence, index, start, end)

    def _publish(self, sequence: Sequence, index: int, start: int, end: int) -> None:
        start = max(start, sequence.num_released[index])
        if end > start:
            keys = keys_of(index, sequence.block_hashes[start:end])
            published = self._pool.publish(sequence.block_tables[index][start:end], keys)
            if self._events is not None:
                self._report(self._events, sequence, keys, start, published)
            if self.tiers is not None:
                table = sequence.block_tables[index]
                self.tiers.published([table[start + at] for at in published], [keys[at] for at in published])

    def _report(
        self, events: KVEvents, sequence: Sequence, keys: abc.Sequence[bytes], start: int, published: list[int]
    ) -> None:
        """Report these indices of `keys`, which belong to the blocks from `start` on, one event for each run."""
        size = self._block_size
        for run in _runs(published):
            block, end = start + run.start, start + run.stop
            parent = sequence.block_hashes[block - 1] if block else sequence.request.chain_root
            tokens = sequence.token_bytes(block * size, end * size)
            events.stored(keys[run.start : run.stop], parent, tokens, sequence.request.adapter)

    def find_in_tiers(self, sequence: Sequence, sibling: Sequence | None, limit: int) -> TierHit | None:
        """A prefix longer than that of `find`, with blocks that can be loaded."""
        tiers, pool = self.tiers, self._pool
        if tiers is None or not tiers.index or not sequence.may_read_cache:
            return None

        def block_of(key: bytes) -> int:
            block = pool.block_of(key)
            return IN_TIER if block == RELEASED and key in tiers.index else block

        num_cached = self.find(sequence, sibling, limit)[0].num_tokens // self._block_size
        return find_hit(sequence, self._groups, limit, num_cached, block_of, self._cut)

    def publish_loaded(self, sequence: Sequence, loaded: Iterable[tuple[int, int, bytes]]) -> None:
        """Make these blocks findable: each has its number in `sequence`, the block, and its key."""
        for number, block, key in loaded:
            assert group_of(key)[0] == sequence.block_hashes[number], "a loaded block is another one"
            published = self._pool.publish([block], [key])
            if self._events is not None:
                self._report(self._events, sequence, [key], number, published)

    def drop_in_tiers(self, sequence: Sequence) -> None:
        """No full block of `sequence` is stored or loaded any more: it may hold NaN."""
        if self.tiers is not None:
            for index in range(len(self._groups)):
                self.tiers.drop(keys_of(index, sequence.block_hashes))

    def invalidate_hashes(self, sequence: Sequence) -> None:
        """Like `KVCache.invalidate`, for blocks that the sequence no longer owns: they may hold NaN."""
        for index in range(len(self._groups)):
            self._pool.invalidate_hashes(keys_of(index, sequence.block_hashes))
        self._tails.invalidate(sequence)
        self.drop_in_tiers(sequence)

    def invalidate_behind(self, sequence: Sequence) -> None:
        """The same for blocks that the sequence has released behind its windows."""
        for index in self._groups.windows:
            self._pool.invalidate_hashes(keys_of(index, sequence.block_hashes[: sequence.num_released[index]]))


def _runs(indices: list[int]) -> list[range]:
    """Ascending `indices` as ranges."""
    runs: list[range] = []
    for index in indices:
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs
