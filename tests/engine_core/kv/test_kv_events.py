"""Events of the prefix cache and the tiers: a follower that loses batches always knows what they have."""

import random
from types import SimpleNamespace

import msgspec
import pytest

from paged_serve.engine_core.kv.event_log import EVENTS_PER_BATCH, EventLog
from paged_serve.engine_core.kv.kv_cache import KVCache
from paged_serve.engine_core.kv.kv_events import MOST_HASHES, KVEvents
from paged_serve.engine_core.kv.kv_group import KVGroups, group_of, keys_of
from paged_serve.engine_core.simulation.event_follower import EventFollower
from paged_serve.protocol.block_hash import HASH_BYTES, chain_blocks, chain_root
from paged_serve.protocol.kv_events.index import KVEventIndex
from paged_serve.protocol.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids

SIZE = 4  # tokens in a block
ROOT = chain_root(SIZE, "")
NUM_RANKS = 2
TWO_GROUPS = KVGroups.of((KVGroup(), KVGroup(is_state=True)), SIZE, 16)


class Cache:
    """A cache with sequences whose tokens are paths of a tree, so that they share prefixes, and two ranks' tiers."""

    def __init__(self, rng, num_blocks=24):
        self.rng = rng
        self.events = KVEvents(SIZE)
        self.kv_cache = KVCache(num_blocks, TWO_GROUPS, events=self.events)
        self.kv_cache.open_tiers(NUM_RANKS, bytes_per_block=1)
        self.keys = []  # of blocks that were published
        self.drops = []
        self.owners = []

    def start(self, tokens):
        """Compute `tokens` in new blocks and publish them."""
        pool, packed = self.kv_cache.pool, pack_ids(tokens)
        count = len(tokens) // SIZE
        tables = tuple(pool.allocate(count) for _ in range(len(TWO_GROUPS)))
        sequence = SimpleNamespace(
            block_tables=tables,
            block_hashes=[],
            num_published=0,
            num_released=[0] * len(tables),
            request=SimpleNamespace(chain_root=ROOT, adapter=None),
            token_bytes=lambda start, end: packed[4 * start : 4 * end],
        )
        self.kv_cache.prefix_cache.publish(sequence, len(tokens))
        self.owners.append([block for table in tables for block in table])
        self.keys = [
            *self.keys,
            *(key for table in range(len(tables)) for key in keys_of(table, sequence.block_hashes)),
        ]
        self.keys = self.keys[-50:]

    def change_tier(self):
        """A rank stores and loses some blocks, or blocks are dropped from both."""
        rng, index = self.rng, self.kv_cache.tiers.index
        some = rng.sample(self.keys, min(len(self.keys), rng.randint(0, 6)))
        kind = rng.random()
        if kind < 0.9:
            index.change(rng.randrange(NUM_RANKS), some, rng.sample(self.keys, len(some) // 2))
        elif kind < 0.95:
            index.drop(some)
            self.drops.append(some)
        elif self.drops:
            index.end_drop(self.drops.pop())

    def act(self):
        rng, pool = self.rng, self.kv_cache.pool
        kind = rng.random()
        if rng.random() < 0.3:
            self.change_tier()
        elif kind < 0.55:
            count = rng.randint(1, 5)
            if pool.num_free >= 2 * count:
                self.start([rng.choice((1, 2)) for _ in range(count * SIZE)])
        elif kind < 0.97:
            if self.owners:
                pool.release(self.owners.pop(rng.randrange(len(self.owners))))
        elif kind < 0.98 and self.owners:
            pool.invalidate(rng.choice(self.owners))
        elif kind < 0.985:
            pool.drop_all()
        elif kind < 0.99:
            self.kv_cache.reset()
            self.owners, self.drops = [], [[*self.kv_cache.tiers.index.dropped]]


def follow(num_events, seed):
    """Random changes, in several cores one after the other; returns how many batches were lost."""
    rng = random.Random(seed)
    follower = EventFollower(rng, num_kept=rng.choice((1, 4, 50)))
    count = 0
    while count < num_events:
        cache = Cache(rng)
        follower.follow(cache)
        for _ in range(rng.randint(1, 2000)):
            cache.act()
            count += len(cache.events._events)
            follower.advance(cache)
        cache.kv_cache.tiers.index.check()
    return follower.num_lost


@pytest.mark.parametrize("num_events", [10_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_follower_finds_what_the_cache_has_after_lost_batches_cut_replays_and_restarts(num_events):
    assert follow(num_events, seed=1) > num_events / 20


def batches_of(events):
    return [msgspec.msgpack.decode(batch, type=KVEventBatch).events for _, batch in events]


def test_blocks_are_stored_with_their_parent_and_tokens_for_each_group():
    cache = Cache(random.Random(0))
    tokens = list(range(9))
    cache.start(tokens[:8])
    first, second = chain_blocks(ROOT, pack_ids(tokens), SIZE)
    assert cache.events.take() == [
        AllBlocksCleared(),
        BlockStored([first, second], ROOT, tokens[:8], SIZE, group_idx=0),
        BlockStored([first, second], ROOT, tokens[:8], SIZE, group_idx=1),
    ]
    cache.start([*tokens[:4], 9, 9, 9, 9])
    third = chain_blocks(first, pack_ids([9] * 4), SIZE)
    stored = [BlockStored(third, first, [9] * 4, SIZE, group_idx=group) for group in (0, 1)]
    assert cache.events.take() == stored, "a block that can be found already was stored again"
    cache.kv_cache.pool.invalidate(cache.owners[0])
    assert cache.events.take() == [BlockRemoved([first, second], group_idx=group) for group in (0, 1)]


def test_a_replay_has_the_kept_batches_and_otherwise_a_snapshot():
    cache = Cache(random.Random(0))
    log = EventLog(cache.events, 100, num_kept=2)
    for token in range(4):
        cache.start([token] * SIZE)
        assert log.take(0.0)[0] == 100 + token
    assert log.take(0.0) is None
    assert [number for number, _ in log.replay(102, 0.0)] == [102, 103]
    assert list(log.replay(104, 0.0)) == []
    for first in (0, 101, 105):
        [(number, batch)] = log.replay(first, 0.0)
        [events] = batches_of([(number, batch)])
        assert (number, events[0], len(events)) == (103, AllBlocksCleared(), 1 + 2 * 4)


def test_a_follower_that_has_lost_a_batch_asks_once_however_many_it_has_yet_to_read():
    cache, index = Cache(random.Random(0)), KVEventIndex()
    log, num_replays = EventLog(cache.events, 100, num_kept=100), 0
    for first in (0, 4):  # at first it has missed all
        published = []
        for token in range(first, first + 4):
            cache.start([token] * SIZE)
            published.append(log.take(0.0))
        for number, batch in published[1:]:
            if not index.receive(number, batch):
                num_replays += 1
                for each in log.replay(index.begin_replay(), 0.0):
                    index.replayed(*each)
                index.end_replay()
        assert index.blocks == {group_of(key) for key in cache.kv_cache.pool.hashes()}
    assert num_replays == 2


def test_a_large_snapshot_has_several_batches():
    cache = Cache(random.Random(0), num_blocks=EVENTS_PER_BATCH + 10)
    log = EventLog(cache.events, 0, 1)
    cache.start([index // 2 for index in range(SIZE * (EVENTS_PER_BATCH // 2 + 5))])
    log.take(0.0)
    log.take(0.0)
    index = KVEventIndex()
    sizes = [len(events) for events in batches_of(log.replay(7, 0.0))]
    assert sizes == [EVENTS_PER_BATCH, 11]
    for batch in log.replay(index.begin_replay(), 0.0):
        index.replayed(*batch)
    index.end_replay()
    assert len(index.blocks) == EVENTS_PER_BATCH + 10


def test_a_block_is_in_a_tier_while_all_ranks_have_it():
    cache = Cache(random.Random(0))
    index, events = cache.kv_cache.tiers.index, cache.events
    events.take()
    first, second = keys = keys_of(1, chain_blocks(ROOT, pack_ids(range(8)), SIZE))
    index.change(0, keys, [])
    assert events.take() == [], "a rank has no block"
    index.change(1, keys, [])
    hashes = [key[:HASH_BYTES] for key in keys]
    assert events.take() == [BlockStored(hashes, None, [], SIZE, medium="STORAGE", group_idx=1)]
    index.change(1, keys, [])
    assert events.take() == [], "a block was stored again"
    log = EventLog(events, 100, num_kept=2)
    assert batches_of(log.replay(0, 0.0)) == [
        [AllBlocksCleared(), BlockStored(hashes, None, [], SIZE, medium="STORAGE", group_idx=1)]
    ]
    index.change(0, [], [first])
    index.change(1, [], [first])
    index.drop([first, second])
    assert events.take() == [BlockRemoved([each], medium="STORAGE", group_idx=1) for each in hashes]
    cache.kv_cache.reset()
    assert events.take() == [AllBlocksCleared()]


def test_a_tier_of_many_blocks_is_reported_in_several_events():
    events = KVEvents(SIZE)
    keys = [number.to_bytes(HASH_BYTES, "big") for number in range(2 * MOST_HASHES + 1)]
    events.stored_in_tier(keys, "STORAGE")
    assert [len(event.block_hashes) for event in events.take()[1:]] == [MOST_HASHES, MOST_HASHES, 1]
    assert [len(event.block_hashes) for event in events.snapshot()[1:]] == [MOST_HASHES, MOST_HASHES, 1]


def test_an_engine_reports_what_it_computed_and_evicted(drive):
    driver = drive(num_blocks=4, kv_events="ipc://events")
    driver.add(range(1, 10), max_tokens=1)
    driver.run()
    hashes = chain_blocks(ROOT, pack_ids(range(1, 10)), SIZE)
    stored = BlockStored(hashes, ROOT, list(range(1, 9)), SIZE, group_idx=0)
    assert driver.engine.kv_cache.events.take() == [AllBlocksCleared(), stored]
    driver.add(range(50, 65), max_tokens=1)
    driver.run()
    events = driver.engine.kv_cache.events.take()
    assert BlockRemoved(hashes[::-1], group_idx=0) in events
    driver.engine.workers_replaced(1, driver.now, from_outside=True)
    assert driver.engine.kv_cache.events.take() == [AllBlocksCleared()]


def test_the_cache_of_a_server_without_events_records_none(drive):
    assert drive().engine.kv_cache.events is None


def test_other_subscribers_decode_the_batches():
    """The types as another project's subscriber declares them."""

    class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
        pass

    class Stored(Event, tag="BlockStored"):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None

    class Removed(Event, tag="BlockRemoved"):
        block_hashes: list[bytes | int]
        medium: str | None

    class Cleared(Event, tag="AllBlocksCleared"):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list[Stored | Removed | Cleared]

    stored = BlockStored([ROOT], ROOT, [1] * SIZE, SIZE, group_idx=0)
    on_disk = BlockStored([ROOT], None, [], SIZE, medium="STORAGE", group_idx=0)
    events = [AllBlocksCleared(), stored, on_disk, BlockRemoved([ROOT])]
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(KVEventBatch(1.5, events)), type=Batch)
    assert decoded.ts == 1.5
    assert decoded.events == [
        Cleared(),
        Stored([ROOT], ROOT, [1] * SIZE, SIZE, None, None),
        Stored([ROOT], None, [], SIZE, None, "STORAGE"),
        Removed([ROOT], None),
    ]
