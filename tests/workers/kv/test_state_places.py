"""The places of states in blocks: they overlap nothing, and the block size is the least that is worthwhile."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace as replace_fields

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow, SchedulerOutput
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.geometry.recurrent.short_convolution import ShortConvolution
from paged_serve.workers.kv.budget import blocks_that_fit
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.state_places import LARGEST_BLOCK, STATE_ALIGNMENT, block_size_for, places_of
from paged_serve.workers.kv.table_units import TableUnits
from paged_serve.workers.models.loading import read_model
from paged_serve.workers.process.rank import Rank

from ..tiny_models.checkpoints import ours
from ..tiny_models.tiny_lfm2 import write_tiny_lfm2

STATE = KVGroup(is_state=True)


@pytest.fixture
def geometry(tmp_path):
    return read_model(Path(write_tiny_lfm2(tmp_path)), ModelConfig())[1]


@pytest.mark.parametrize("seed", range(30))
def test_no_two_states_of_a_group_overlap(seed):
    rng = random.Random(seed)
    sizes = [rng.choice((64, 100, 1000)) for _ in range(rng.randint(1, 40))]
    block_bytes = rng.randint(1, 12) * rng.choice((1000, 1024, 4096))
    taken = set()
    for place, size in zip(places_of(sizes, block_bytes), sizes, strict=True):
        assert place.offset % STATE_ALIGNMENT == 0
        assert place.offset + size <= block_bytes
        own = {(place.group, at) for at in range(place.offset, place.offset + size)}
        assert not own & taken
        taken |= own
    groups = [place.group for place in places_of(sizes, block_bytes)]
    assert groups == sorted(groups)
    assert set(groups) == set(range(groups[-1] + 1))


@pytest.mark.parametrize(
    ("state", "count", "layers", "per_token", "size", "groups"),
    [
        (8 << 10, 10, 6, 1024, 16, 1),  # LFM2 1.2B: all states take less than half of a block of 16 tokens
        (2 << 20, 36, 12, 1024, 512, 6),  # six states of 2 MiB lie over the areas of a block
        (64 << 10, 24, 4, 1024, 192, 1),  # all in one block, none across more areas than it needs
        (256 << 10, 24, 1, 1024, 512, 6),  # blocks do not grow beyond LARGEST_BLOCK to save groups
        (2 << 20, 2, 1, 1024, 1024, 2),  # unless one state needs it
    ],
)
def test_the_block_size_is_the_least_with_the_fewest_groups(state, count, layers, per_token, size, groups):
    found = block_size_for([state] * count, 2 * layers * per_token, 16)
    assert found == size
    assert places_of([state] * count, found * 2 * layers * per_token)[-1].group + 1 == groups
    assert found <= max(LARGEST_BLOCK, state // per_token)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_states_and_keys_of_one_block_are_the_same_bytes(geometry, dtype, tp_size):
    layout = CacheLayout.of(geometry, 10_000, 16, tp_size, dtype)
    shape = geometry, 5, layout.block_size, tp_size
    cache = KVCache.allocate(*shape, dtype=dtype, groups=layout.groups)
    unit = layout.groups.unit
    assert (unit, layout.groups.table_units) == (4, (4, 1))
    assert [len(keys) for keys in cache.keys] == [0, 4 * unit + 1, 0, 0, 4 * unit + 1]
    assert [len(states) for states in cache.states] == [5, 0, 5, 5, 0]
    assert [states.shape[1] for states in cache.states if len(states)] == geometry.state_bytes(tp_size)
    areas = [tensor for pair in zip(cache.keys, cache.values, strict=True) for tensor in pair if len(tensor)]
    for area in areas:
        area.view(torch.uint8).zero_()
    for index, states in enumerate(cache.states):
        states[2:3] = index + 1
    block = torch.cat([area[2 * unit].view(torch.uint8).flatten() for area in areas])
    expected = [states.shape[1] if len(states) else 0 for states in cache.states]
    assert [int((block == index + 1).sum()) for index in range(5)] == expected
    others = [area.view(torch.uint8)[block * unit].sum() for area in areas for block in (0, 1, 3, 4)]
    assert not any(map(bool, others)), "another block was written"
    rows = [areas[0], *cache.scales[1][:1]] if cache.scales else [areas[0]]
    held = sum(unit * row[0].nbytes for row in rows)
    assert held == layout.bytes_per_block


def test_a_model_without_attention_has_blocks_of_its_own(geometry):
    kind = ShortConvolution(64, 7)
    alone = replace(geometry, recurrent=(kind,) * 5)
    layout = CacheLayout.of(alone, 1 << 20, 64)
    assert layout.groups.kinds == (STATE,)
    assert layout.block_size == 512
    assert layout.bytes_per_block == 5 * 768
    assert layout.groups.blocks_of_sequence(1 << 20, 512, 2048) == 5
    cache = KVCache.allocate(alone, 3, 512, groups=layout.groups)
    for index, states in enumerate(cache.states):
        states[:] = index
    assert [int(states[1].sum()) for states in cache.states] == [768 * index for index in range(5)]


def test_a_rank_reports_its_state_group_and_the_block_size_in_use(tmp_path):
    folder = write_tiny_lfm2(tmp_path)
    scheduler = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64)
    config = Config(ModelConfig(model=folder, device="cpu"), CacheConfig(), scheduler)
    model = ours(folder)
    ready = Rank(config, TensorParallelGroup(), model, None, None, 0.0).ready()
    assert ready.kv_groups == (KVGroup(), STATE)
    assert ready.block_size == 32
    assert ready.kv_bytes_per_block == 2 * 2 * 16 * 2 * 32
    of_one = 256 // 32 + 3  # the context, and the states that a chunk of 64 tokens reads and writes
    assert ready.num_blocks == 2 * of_one
    assert blocks_that_fit(config, model.geometry, 1, 1 << 30, torch.bfloat16) == 2 * of_one


def test_a_cache_of_states_alone_that_cannot_be_allocated_is_refused_with_its_bytes(geometry):
    kinds = (ShortConvolution(geometry.hidden_size, 3),) * geometry.num_layers
    alone = replace(geometry, recurrent=kinds)
    layout, num_blocks = CacheLayout.of(alone, 1024, 16), 1 << 45
    with pytest.raises(ConfigError, match=f"needs {num_blocks * layout.bytes_per_block} bytes"):
        KVCache.allocate(alone, num_blocks, layout.block_size, groups=layout.groups)


def plan_with_blocks() -> SchedulerOutput:
    new = NewRow(
        row=1,
        token_ids=pack_ids([5]),
        prompt_len=1,
        num_computed_tokens=0,
        block_tables=(pack_ids([3, 7]), pack_ids([-1, 2])),
        sampling_params=SamplingParams(),
        seed=0,
        eos_token_ids=(),
    )
    return SchedulerOutput(
        epoch=0, step=0, new_rows=(new,), extended_tables=pack_ids([5, 2]), extended_block_ids=pack_ids([9, 8])
    )


def test_block_ids_of_a_plan_are_in_the_units_of_their_groups():
    plan = plan_with_blocks()
    found = TableUnits((4, 1), 10).of(plan)
    assert [list(unpack_ids(table)) for table in found.new_rows[0].block_tables] == [[12, 28], [-1, 2]]
    assert list(unpack_ids(found.extended_block_ids)) == [9, 32]
    assert TableUnits((1, 1), 10).of(plan) is plan
    steady = replace_fields(plan, new_rows=(), extended_tables=b"", extended_block_ids=b"")
    assert TableUnits((4, 1), 10).of(steady) is steady


def test_a_plan_with_a_block_that_the_cache_lacks_is_refused():
    plan = plan_with_blocks()
    of_row = replace_fields(plan, extended_tables=b"", extended_block_ids=b"")
    for units in ((1, 1), (4, 1)):
        for num_blocks, without in ((9, plan), (7, of_row)):
            with pytest.raises(ValueError, match=f"the KV cache has {num_blocks} blocks"):
                TableUnits(units, num_blocks).of(without)
            TableUnits(units, num_blocks + 1).of(without)
