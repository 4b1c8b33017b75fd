"""The block pool compared with a simple model, under random operations."""

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_serve.engine_core.kv.block_pool import BlockPool

NUM_BLOCKS = 12


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: owners as lists, cached free blocks in the order in which they became free, tenants by name."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners = []
        self.names = {}  # block -> name
        self.cached = []  # free blocks with a name, oldest first
        self.invalid = set()
        self.tenants = {}  # block -> whose its contents are
        self.num_evicted = 0
        self.used_at = {}  # tenant -> num_evicted

    @property
    def counts(self):
        return Counter(block for blocks in self.owners for block in blocks)

    @rule(count=st.integers(1, 6), data=st.data())
    def allocate(self, count, data):
        num_blank = NUM_BLOCKS - len(self.counts) - len(self.cached)
        if count > num_blank + len(self.cached):
            with pytest.raises(AssertionError, match="wanted"):
                self.pool.allocate(count)
            return
        tenants = data.draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
        if data.draw(st.booleans()):
            tenants = tenants[:1]
        blocks = self.pool.allocate(count, tenants)
        wanted = Counter(tenants * (count if len(tenants) == 1 else 1))
        evicted = self.to_be_evicted(max(0, count - num_blank), wanted)
        assert set(evicted) <= set(blocks)
        assert not set(blocks) & set(self.cached), "the evicted block was not the oldest of the tenant with most blocks"
        for block in evicted:
            del self.names[block]
        self.tenants.update(zip(blocks, tenants * (count if len(tenants) == 1 else 1), strict=True))
        self.owners.append(blocks)

    def to_be_evicted(self, count, wanted):
        stale = {name for name, used in self.used_at.items() if used < self.num_evicted - 8 * NUM_BLOCKS}
        evicted = []
        for _ in range(count):
            sizes = wanted + Counter(self.tenants[block] for block in [*self.cached, *self.counts])
            victim = min(
                (self.tenants[block] for block in self.cached), key=lambda name: (name not in stale, -sizes[name], name)
            )
            blocks = [block for block in self.cached if self.tenants[block] == victim]
            evicted.append(next((block for block in blocks if self.names[block].startswith(b"tail")), blocks[0]))
            self.cached.remove(evicted[-1])
        self.num_evicted += count
        return evicted

    def used(self, blocks):
        for block in blocks:
            self.used_at[self.tenants[block]] = self.num_evicted

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data):
        blocks = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.pool.release(blocks)
        freed = [block for block in blocks if block not in self.counts and block in self.names]
        self.cached += freed
        self.used(freed)
        self.invalid &= self.counts.keys()

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), name=st.integers(0, 8))
    def publish(self, data, name):
        blocks = data.draw(st.sampled_from(self.owners))
        block, name = data.draw(st.sampled_from(blocks)), b"%d" % name
        self.pool.publish([block], [name])
        if block not in self.names and name not in self.names.values():
            self.names[block] = name

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), name=st.integers(0, 4))
    def publish_partial(self, data, name):
        block, name = data.draw(st.sampled_from(data.draw(st.sampled_from(self.owners)))), b"tail %d" % name
        if self.pool.publish([block], [name]):
            self.pool.tails.add([name], b"parent", 3)
            self.names[block] = name

    @rule(names=st.lists(st.integers(0, 8), max_size=5))
    def find_and_share(self, names):
        by_name = {name: block for block, name in self.names.items()}
        expected = []
        for name in names:
            if b"%d" % name not in by_name:
                break
            expected.append(by_name[b"%d" % name])
        found = self.pool.find([b"%d" % name for name in names])
        assert found == expected
        assert self.pool.num_free_among(found) == sum(block in self.cached for block in found)
        if found:
            self.pool.share(found)
            self.used(block for block in found if block in self.cached)
            self.cached = [block for block in self.cached if block not in found]
            self.owners.append(found)

    @rule(blocks=st.sets(st.integers(0, NUM_BLOCKS - 1), max_size=4))
    def drop(self, blocks):
        self.pool.drop(blocks)
        self.used(block for block in blocks if block in self.cached)
        for block in blocks:
            self.names.pop(block, None)
        self.cached = [block for block in self.cached if block not in blocks]

    @rule(names=st.sets(st.integers(0, 8), max_size=3))
    def invalidate_hashes(self, names):
        names = {b"%d" % name for name in names}
        blocks = {block for block, name in self.names.items() if name in names}
        self.pool.invalidate_hashes(names)
        self.invalid |= blocks & self.counts.keys()
        self.names = {block: name for block, name in self.names.items() if block not in blocks}
        self.cached = [block for block in self.cached if block not in blocks]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def invalidate(self, data):
        blocks = data.draw(st.sampled_from(self.owners))
        self.pool.invalidate(blocks)
        self.invalid |= set(blocks)
        self.names = {block: name for block, name in self.names.items() if block not in blocks}

    @invariant()
    def what_is_shared_is_valid(self):
        for blocks in self.owners:
            trusted = blocks[: self.pool.num_valid(blocks)]
            assert not self.invalid & set(trusted)
            assert trusted == blocks or blocks[len(trusted)] in self.invalid

    @invariant()
    def accounting_holds(self):
        self.pool.check(self.owners)
        assert self.pool.num_free == NUM_BLOCKS - len(self.counts)
        assert self.pool.num_cached == len(self.cached)


PoolAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestPool = PoolAgainstModel.TestCase


@pytest.mark.parametrize("seed", range(5))
def test_random_traffic_never_leaks_a_block(seed):
    rng, pool, owners = random.Random(seed), BlockPool(32), []
    for _ in range(1000):
        action = rng.choice(["allocate", "share", "release"])
        if action == "allocate" and (count := rng.randint(1, 6)) <= pool.num_free:
            owners.append(pool.allocate(count))
        elif action == "share" and owners:
            pool.share(blocks := rng.choice(owners))
            owners.append(list(blocks))
        elif action == "release" and owners:
            pool.release(owners.pop(rng.randrange(len(owners))))
        pool.check(owners)


def test_blocks_without_contents_are_allocated_before_cached_ones():
    pool = BlockPool(4)
    story = pool.allocate(2)
    pool.publish(story, [b"one", b"two"])
    pool.release(reversed(story))
    assert not set(pool.allocate(2)) & set(story)
    assert pool.find([b"one", b"two"]) == story


def test_the_lowest_ids_are_allocated_first():
    pool = BlockPool(6)
    assert pool.allocate(2) == [0, 1]
    pool.publish([1], [b"one"])
    pool.release([1, 0])
    assert pool.allocate(6) == [0, 2, 3, 4, 5, 1]


def test_all_contents_can_be_dropped_at_once():
    pool = BlockPool(4)
    owned, free = pool.allocate(1), pool.allocate(1)
    pool.publish([*owned, *free], [b"one", b"two"])
    pool.release(free)
    pool.drop_all()
    assert pool.find([b"one"]) == pool.find([b"two"]) == []
    assert (pool.num_free, pool.num_cached, pool.num_valid(owned)) == (3, 0, 1)
    pool.check([owned])


def test_an_invalid_block_stays_invalid_until_it_is_freed():
    pool = BlockPool(4)
    owned = pool.allocate(3)
    assert pool.num_valid(owned) == 3
    pool.invalidate(owned[1:])
    assert pool.num_valid(owned) == 1
    pool.release(owned)
    assert pool.num_valid(pool.allocate(4)) == 4


def test_a_shared_prefix_outlives_its_tail():
    pool = BlockPool(2)
    story = pool.allocate(2)
    pool.publish(story, [b"one", b"two"])
    pool.release(reversed(story))
    pool.allocate(1)
    assert pool.find([b"one", b"two"]) == story[:1]


def test_partial_blocks_are_evicted_before_full_ones_the_oldest_first():
    pool = BlockPool(8)
    for number in range(4):
        full, partial = pool.allocate(2)
        pool.publish([full, partial], names := [b"full %d" % number, b"tail %d" % number])
        pool.tails.add(names[1:], names[0], 3)
        pool.release([partial, full])
    pool.share([pool.block_of(b"tail 0")])
    pool.release([pool.block_of(b"tail 0")])  # found again: now the newest
    for number, order in enumerate([1, 2, 3, 0]):
        pool.allocate(1)
        found = {each for each in range(4) if pool.block_of(b"tail %d" % each) >= 0}
        assert order not in found
        assert len(found) == 3 - number
        assert all(pool.find([b"full %d" % each]) for each in range(4))
    assert [pool.allocate(1) and pool.num_cached for _ in range(4)] == [3, 2, 1, 0]


def test_check_detects_every_kind_of_damage():
    def damaged(change):
        pool = BlockPool(4)
        owned = pool.allocate(2)
        pool.publish(owned, [b"one", b"two"])
        pool.release([owned[0]])
        change(pool, owned)
        with pytest.raises(AssertionError):
            pool.check([owned[1:]])

    damaged(lambda pool, owned: pool._blank.pop())
    damaged(lambda pool, owned: pool._invalid.add(owned[0]))
    damaged(lambda pool, owned: pool._blank.append(pool._blank[0]))
    damaged(lambda pool, owned: pool._refcounts.__setitem__(owned[1], 2))
    damaged(lambda pool, owned: pool._blank.append(owned[1]))
    damaged(lambda pool, owned: pool._hash_by_block.pop(owned[0]))
    damaged(lambda pool, owned: pool._block_by_hash.pop(b"two"))


def test_releasing_a_block_without_an_owner_is_an_error():
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="no owner"):
        pool.release([1])
