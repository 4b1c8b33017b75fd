"""Reference counts of KV blocks, and the hashes by which their contents can be found.

A block is in exactly one of three states: owned (refcount > 0), cached (free, but can be found by its hash and
shared again), or blank (free, contents worthless). Blank blocks are allocated first, then cached ones.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from .evictor import Evictor
from .kv_events import KVEvents
from .tail_index import TailIndex


class BlockPool:
    """Reference counts and hashes of `num_blocks` blocks."""

    def __init__(self, num_blocks: int, events: KVEvents | None = None):
        """`events`: told which hashes can no longer be found; None: nothing follows."""
        self.num_blocks = num_blocks
        self._events = events
        self._refcounts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack; the lowest id is allocated first
        self._cached = Evictor(num_blocks)
        self._tenants = [""] * num_blocks  # of each block that is not blank: it counts in this tenant's share
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}
        self.tails = TailIndex()  # which of the hashes are those of partial blocks
        self._invalid: set[int] = set()  # owned; what they hold may be NaN

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents can still be found."""
        return len(self._cached)

    def allocate(self, count: int, tenants: Sequence[str] = ("",)) -> list[int]:
        """Allocate `count` blocks, each with one owner. The caller has checked `num_free`.

        `tenants`: one for all blocks, or one per block.
        """
        assert 0 <= count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        tenants = tenants if len(tenants) == count else [*tenants] * count
        self._cached.count_each(tenants)  # before blocks are evicted for them
        start = max(0, len(self._blank) - count)
        taken = self._blank[start:]
        del self._blank[start:]
        taken.reverse()
        if len(taken) < count:
            evicted = self._cached.evict(count - len(taken))
            self._drop_hashes(evicted)
            taken += evicted
        refcounts, named = self._refcounts, self._tenants
        for block, tenant in zip(taken, tenants, strict=True):
            refcounts[block] = 1
            named[block] = tenant
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block; a cached one leaves the free list with its contents."""
        refcounts, free = self._refcounts, []
        for block in blocks:
            if not refcounts[block]:
                free.append(block)
            refcounts[block] += 1
        self._cached.remove(free)

    def release(self, blocks: Iterable[int]) -> None:
        """Remove one owner of each block. Blocks that become free are evicted in the order given."""
        refcounts, hashes = self._refcounts, self._hash_by_block
        for block in blocks:
            assert refcounts[block] > 0, f"block {block} is released but has no owner"
            refcounts[block] -= 1
            if refcounts[block]:
                continue
            self._invalid.discard(block)
            if block in hashes:
                self._cached.add(block, self._tenants[block])
            else:
                self._blank.append(block)
                self._cached.count(self._tenants[block], -1)

    def publish(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> list[int]:
        """Make owned blocks findable by their hashes. Of two blocks with equal contents, the first one is found.

        Returns the indices of the blocks that can be found now and could not before.
        """
        published = []
        for index, (block, block_hash) in enumerate(zip(blocks, hashes, strict=True)):
            if block_hash not in self._block_by_hash and block not in self._hash_by_block:
                self._block_by_hash[block_hash] = block
                self._hash_by_block[block] = block_hash
                published.append(index)
        return published

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of `hashes`. Does not add an owner."""
        blocks = list(map(self._block_by_hash.get, hashes))
        end = blocks.index(None) if None in blocks else len(blocks)
        return blocks[:end]  # type: ignore[return-value]

    def block_of(self, block_hash: bytes) -> int:
        """The block with this hash, or -1. Does not add an owner."""
        return self._block_by_hash.get(block_hash, -1)

    def hash_of(self, block: int) -> bytes | None:
        """The hash by which `block` can be found, or None."""
        return self._hash_by_block.get(block)

    def hashes(self) -> Iterable[bytes]:
        """The hashes of all full blocks that can be found."""
        return [block_hash for block_hash in self._block_by_hash if block_hash not in self.tails]

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` would leave the free list if they were shared now."""
        return sum(map(self._cached.__contains__, blocks))

    def num_owned_once(self, blocks: Sequence[int], besides: set[int]) -> int:
        """How many of `blocks` have one owner, those in `besides` not counted."""
        num_once = list(map(self._refcounts.__getitem__, blocks)).count(1)
        return num_once - sum(self._refcounts[block] == 1 for block in besides.intersection(blocks))

    def num_valid(self, blocks: Sequence[int]) -> int:
        """How many leading blocks of `blocks` other sequences may share."""
        if not self._invalid:
            return len(blocks)
        return next((index for index, block in enumerate(blocks) if block in self._invalid), len(blocks))

    def invalidate(self, blocks: Iterable[int]) -> None:
        """Mark blocks that may hold NaN: no other sequence shares them until they have been freed."""
        blocks = list(blocks)
        self._invalid.update(block for block in blocks if self._refcounts[block])
        self.drop(blocks)

    def invalidate_hashes(self, hashes: Iterable[bytes]) -> None:
        self.invalidate(block for block_hash in hashes if (block := self._block_by_hash.get(block_hash)) is not None)

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove the hashes of these blocks, whether owned or not, so that their contents cannot be found."""
        found = [block for block in dict.fromkeys(blocks) if block in self._hash_by_block]
        self._drop_hashes(found)
        for block in found:
            if block in self._cached:
                self._cached.remove([block])
                self._cached.count(self._tenants[block], -1)
                self._blank.append(block)

    def drop_all(self) -> None:
        self.drop(list(self._hash_by_block))

    def _drop_hashes(self, blocks: Iterable[int]) -> None:
        """Remove the hashes of these blocks, which have one."""
        hashes = [self._hash_by_block.pop(block) for block in blocks]
        for block_hash in hashes:
            del self._block_by_hash[block_hash]
        hashes = self.tails.remove(hashes)
        if self._events is not None and hashes:
            self._events.removed(hashes)

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless `owners` (block lists) match every refcount and no block is lost."""
        expected = Counter(block for blocks in owners for block in blocks)
        for block, count in enumerate(self._refcounts):
            assert count == expected[block], f"block {block} has refcount {count} but {expected[block]} owners"
        held = Counter(self._tenants[block] for block in [*expected, *self._cached])
        assert held == self._cached.num_owned_by, "the blocks per tenant are miscounted"
        free = [*self._blank, *self._cached]
        assert len(free) == len(set(free)), "a block is free twice"
        assert not expected.keys() & set(free), "an owned block is free"
        assert len(free) + len(expected) == self.num_blocks, "a block is neither free nor owned"
        assert self._invalid <= expected.keys(), "a free block is invalid"
        assert all(block in self._hash_by_block for block in self._cached), "a cached block has no hash"
        assert not any(block in self._hash_by_block for block in self._blank), "a blank block has a hash"
        self.tails.check(self._block_by_hash)
        assert {block: key for key, block in self._block_by_hash.items()} == self._hash_by_block, "hashes differ"
        if self._events is not None:
            self._events.check(set(self.hashes()))
