"""Transfers of blocks between the cache and the workers' tiers, and the sequences that wait for them."""

import pytest

from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.kv.tiers.load_speed import LoadSpeed
from paged_serve.engine_core.process.tier_link import take_tier_messages, tier_answered
from paged_serve.engine_core.scheduling.loading import LONGEST_LOAD_S, LONGEST_OPENING_S
from paged_serve.protocol.block_hash import HASH_BYTES
from paged_serve.protocol.messages.config import Config, KVTierConfig, ParallelConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.loading.kv_tiers import (
    KEY_BYTES,
    BlocksMoved,
    DropBlocks,
    LoadBlocks,
    OpenTier,
    StoreBlocks,
    TierContents,
    pack_keys,
    unpack_keys,
)
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.stats import KVTierStats
from paged_serve.protocol.messages.worker import ModelRunnerOutput

CLIENT = b"client:0"
BLOCK_BYTES = 1000


class Core:
    """An engine whose ranks the test plays."""

    def __init__(self, num_ranks=1, num_blocks=32):
        config = Config(kv_tier=KVTierConfig(dir="x"), parallel=ParallelConfig(tensor_parallel_size=num_ranks))
        self.engine = EngineCore(
            config, ModelFacts(num_blocks, 4, 64, 1000, frozenset({0}), kv_bytes_per_block=BLOCK_BYTES)
        )
        self.engine.add_client(CLIENT, 0.0)
        self.number = 0

    def add(self, prompt):
        self.number += 1
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        self.engine.add_request(CLIENT, EngineCoreRequest(1000 * self.number, pack_ids(prompt), params), 0.0)

    def step(self, now=0.0):
        """Plan a step and answer it; returns the tokens computed, 0 if nothing could run."""
        if (plan := self.engine.plan(now)) is None:
            return 0
        num_tokens = sum(chunk.num_tokens for chunk in plan.chunks)
        num_samples = sum(chunk.samples for chunk in self.engine.scheduler.in_flight[-1].chunks)
        self.engine.apply(ModelRunnerOutput(plan.epoch, plan.step, pack_ids([7] * num_samples), 0.001), now)
        check_invariants(self.engine)
        return num_tokens

    def messages(self, now=0.0):
        found = take_tier_messages(self.engine, now)
        check_invariants(self.engine)
        return found

    def answer(self, message, now=0.0):
        tier_answered(self.engine, message, now)
        check_invariants(self.engine)

    @property
    def loading(self):
        return list(self.engine.scheduler.loading)


def opened(num_ranks=1, keys=(), **options):
    core = Core(num_ranks, **options)
    assert core.messages() == [OpenTier(0)]
    for rank in range(num_ranks):
        core.answer(TierContents(0, rank, pack_keys(keys)))
    return core


def stored_keys(prompt):
    """The keys of a prompt's blocks, in the order of the prompt."""
    core = opened()
    core.add(prompt)
    core.step()
    [store] = core.messages()
    return unpack_keys(store.keys)


def loading_core(prompt):
    """A core whose tier holds the prompt, the keys of its blocks, and the load that is under way, sent at 0 s."""
    keys = stored_keys(prompt)
    core = opened(keys=keys)
    core.add(prompt)
    assert core.step() == 0
    [load] = core.messages()
    return core, keys, load


def test_keys_keep_their_groups_in_messages():
    keys = [bytes(HASH_BYTES), b"a" * HASH_BYTES, b"b" * HASH_BYTES + b"\x02\0"]
    assert unpack_keys(pack_keys(keys)) == keys
    with pytest.raises(ValueError, match=f"35 bytes of keys, which have {KEY_BYTES} each"):
        TierContents(0, 0, bytes(35))
    with pytest.raises(ValueError, match="2 blocks with 1 keys"):
        LoadBlocks(0, 1, bytes(8), bytes(KEY_BYTES))


def test_blocks_are_stored_once_and_owned_until_every_rank_has_answered():
    core = opened(num_ranks=2)
    core.add(range(1, 14))
    core.step()
    pool = core.engine.kv_cache.pool
    [store] = core.messages()
    assert isinstance(store, StoreBlocks)
    assert len(unpack_keys(store.keys)) == 3
    assert pool.num_free == pool.num_blocks - 3
    core.answer(BlocksMoved(0, 0, store.transfer))
    assert pool.num_free == pool.num_blocks - 3
    core.answer(BlocksMoved(0, 1, store.transfer))
    assert pool.num_free == pool.num_blocks
    assert core.messages() == []


def test_a_sequence_waits_for_its_blocks_and_computes_the_rest():
    prompt = range(1, 14)
    core = opened(keys=stored_keys(prompt))
    core.add(prompt)
    core.add(range(100, 110))
    assert core.step() == 10, "the other sequence runs meanwhile"
    assert len(core.loading) == 1
    load = next(message for message in core.messages() if isinstance(message, LoadBlocks))
    core.answer(BlocksMoved(0, 0, load.transfer))
    assert core.loading == []
    assert core.step() == 1


def test_only_what_all_ranks_hold_and_load_is_used():
    prompt = range(1, 14)
    keys = stored_keys(prompt)
    core = opened(num_ranks=2, keys=keys)
    core.answer(TierContents(0, 1, removed=pack_keys(keys[2:])))
    core.add(prompt)
    assert core.step() == 0
    [load] = core.messages()
    assert unpack_keys(load.keys) == keys[:2]
    core.answer(BlocksMoved(0, 0, load.transfer))
    core.answer(BlocksMoved(0, 1, load.transfer, pack_ids([1])))
    core.answer(TierContents(0, 1, removed=pack_keys(keys[1:2])))
    assert core.step() == 9, "the first block was loaded by both"


def test_equal_prompts_wait_for_one_load():
    prompt = range(1, 14)
    core = opened(keys=stored_keys(prompt))
    core.add(prompt)
    core.add(prompt)
    assert core.step() == 0
    assert len(core.loading) == 2
    [load] = core.messages()
    core.answer(BlocksMoved(0, 0, load.transfer))
    assert core.step() == 2


def test_sequences_wait_for_the_contents_and_not_for_long():
    core = Core()
    core.add(range(1, 14))
    assert core.step() == 0
    core.messages(now=1.0)
    assert core.step() == 0
    core.messages(now=1.1 + LONGEST_OPENING_S)
    assert core.step() == 13
    core.add(range(100, 110))
    assert core.step() == 10, "later sequences wait no more"


def test_a_load_that_takes_too_long_is_given_up_and_keeps_its_blocks():
    core, _, load = loading_core(range(1, 14))
    core.messages(now=0.1 + LONGEST_LOAD_S)
    assert core.step() == 13
    pool = core.engine.kv_cache.pool
    assert pool.num_free == pool.num_blocks - 3
    core.answer(BlocksMoved(0, 0, load.transfer))
    assert pool.num_free == pool.num_blocks


def test_new_workers_end_all_transfers_and_list_their_tiers_again():
    core, keys, load = loading_core(range(1, 14))
    core.engine.workers_replaced(1, 0.0, from_outside=True)
    check_invariants(core.engine)
    core.answer(BlocksMoved(0, 0, load.transfer))
    assert core.step() == 0, "it waits for the contents"
    assert core.messages() == [OpenTier(1)]
    core.answer(TierContents(1, 0, pack_keys(keys)))
    assert core.step() == 0
    [load] = core.messages()
    core.answer(BlocksMoved(1, 0, load.transfer))
    assert core.step() == 1


def test_blocks_that_may_not_be_finite_are_dropped_once_and_new_workers_are_told_too():
    prompt = range(1, 14)
    keys = stored_keys(prompt)
    core = opened(keys=keys)
    core.engine.kv_cache.tiers.drop(keys[1:])
    assert core.messages() == [DropBlocks(0, 1, pack_keys(keys[1:]))]
    core.engine.workers_replaced(1, 0.0, from_outside=True)
    opening, drop = core.messages()
    assert opening == OpenTier(1)
    assert sorted(unpack_keys(drop.keys)) == sorted(keys[1:])
    core.answer(TierContents(1, 0, pack_keys(keys)))
    core.add(prompt)
    assert core.step() == 0
    [load] = core.messages()
    assert unpack_keys(load.keys) == keys[:1]
    core.answer(BlocksMoved(1, 0, load.transfer))
    assert core.step() == 9
    assert core.messages() == [], "a block is stored before the one it replaces is removed"
    core.answer(TierContents(1, 0, removed=drop.keys))
    core.answer(BlocksMoved(1, 0, drop.transfer))
    [store] = core.messages()
    assert unpack_keys(store.keys) == keys[1:], "a block that was computed again is not stored"
    core.answer(TierContents(1, 0, store.keys))
    assert all(key in core.engine.kv_cache.tiers.index for key in keys)


def test_each_of_two_drops_is_waited_for():
    keys = stored_keys(range(1, 14))
    core = opened(num_ranks=2, keys=keys)
    tiers = core.engine.kv_cache.tiers
    tiers.drop(keys[:2])
    tiers.drop(keys[1:])
    first, second = core.messages()
    for rank in range(2):
        core.answer(BlocksMoved(0, rank, first.transfer))
    assert set(tiers.index.dropped) == set(keys[1:])
    core.answer(BlocksMoved(0, 0, second.transfer))
    core.answer(TierContents(0, 0, pack_keys(keys)))
    assert [key in tiers.index for key in keys] == [False] * 3
    core.answer(BlocksMoved(0, 1, second.transfer))
    assert not tiers.index.dropped


def test_a_load_that_is_under_way_does_not_bring_back_a_dropped_block():
    core, keys, load = loading_core(range(1, 14))
    core.engine.kv_cache.tiers.drop(keys[2:])
    [drop] = core.messages()
    core.answer(BlocksMoved(0, 0, drop.transfer))
    core.answer(BlocksMoved(0, 0, load.transfer))
    assert core.step() == 5


def test_what_was_moved_is_counted_over_all_workers():
    core, keys, load = loading_core(range(1, 14))
    core.answer(BlocksMoved(0, 0, load.transfer, pack_ids([1])), now=0.5)
    core.answer(TierContents(0, 0, removed=pack_keys(keys[1:2])))
    assert core.step() == 9, "the blocks from the one that failed on are computed"
    [store] = core.messages(now=1.0)
    core.answer(TierContents(0, 0, store.keys))
    core.answer(BlocksMoved(0, 0, store.transfer), now=1.25)
    loads = {"num_loads": 1, "load_s": 0.5, "loaded_blocks": 2, "loaded_bytes": 2 * BLOCK_BYTES, "failed_blocks": 1}
    stores = {"num_stores": 1, "store_s": 0.25, "stored_blocks": 1, "stored_bytes": BLOCK_BYTES}
    assert core.engine.stats(2.0).kv_tier == KVTierStats(3 * BLOCK_BYTES, **loads, **stores)
    core.engine.workers_replaced(1, 2.0, from_outside=True)
    assert core.engine.stats(3.0).kv_tier == KVTierStats(0, **loads, **stores)


def test_a_slow_tier_is_not_waited_for_and_tried_again_later():
    speed = LoadSpeed()
    assert speed.is_worth(10**9, compute_s=0.0), "nothing is known yet"
    for _ in range(20):
        speed.loaded(10**6, 1.0)
    assert speed.bytes_per_s == pytest.approx(10**6, rel=0.1)
    assert not speed.is_worth(10**7, compute_s=1.0)
    assert any(speed.is_worth(10**7, compute_s=1.0) for _ in range(200))


def test_prefixes_that_are_computed_faster_than_any_tier_answers_do_not_make_it_look_quick():
    speed = LoadSpeed()
    for _ in range(20):
        speed.loaded(10**6, 1.0)
    assert not any(speed.is_worth(10**3, compute_s=0.001) for _ in range(1000))
    assert not speed.is_worth(10**7, compute_s=1.0)
