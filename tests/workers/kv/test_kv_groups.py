"""The division of layers into groups, and the memory that it saves."""

import random

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.startup import MAX_KV_GROUPS, KVGroup
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.budget import blocks_that_fit, layout_of
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.kv_groups import COST_OF_GROUP, KVGroups
from paged_serve.workers.process.rank import Rank

from ..tiny_models.checkpoints import ours, write_checkpoint

GEMMA_3_1B = [512, 512, 512, 512, 512, 0] * 4 + [512, 512]
MISTRAL_7B = [4096] * 32


def test_layers_of_one_kind_are_one_group():
    for windows, length, held in (([0] * 28, 4096, 0), (MISTRAL_7B, 32768, 4096), (MISTRAL_7B, 4096, 0)):
        groups = KVGroups.of(windows, length)
        assert groups.windows == (held,)
        assert groups.tensor_of_layer == tuple(range(len(windows)))


def test_a_window_that_no_request_exceeds_has_no_effect():
    assert KVGroups.of(GEMMA_3_1B, 512) == KVGroups.whole(26)
    assert KVGroups.of(GEMMA_3_1B, 513).windows != (0,)


def test_the_groups_of_gemma_have_as_many_layers_as_have_full_attention():
    groups = KVGroups.of(GEMMA_3_1B, 32768)
    assert groups.windows == (0, *[512] * 6)
    assert groups.layers_per_group == 4
    assert [layer for layer, group in enumerate(groups.of_layer) if group == 0] == [5, 11, 17, 23]
    assert [layer for layer, group in enumerate(groups.of_layer) if group == 6] == [24, 25]


@pytest.mark.parametrize(
    ("num_sliding", "num_full", "window", "length", "size"),
    [
        (22, 4, 512, 32768, 4),  # Gemma 3 1B
        (22, 4, 512, 1024, 4),
        (40, 8, 1024, 131072, 8),  # 12B
        (52, 10, 1024, 131072, 10),  # 27B: 6 groups of 11 would shorten a long context by a tenth
        (14, 14, 4096, 8192, 14),
        (27, 1, 4096, 8192, 3),  # the tables of 28 groups of one layer would cost more than they save
    ],
)
def test_the_size_of_groups_weighs_bytes_against_tables(num_sliding, num_full, window, length, size):
    assert KVGroups.of([window] * num_sliding + [0] * num_full, length).layers_per_group == size


@pytest.mark.parametrize("seed", range(50))
def test_layers_with_the_same_window_have_separate_places(seed):
    rng = random.Random(seed)
    length = rng.choice((100, 1000, 100_000))
    windows = [rng.choice((0, 0, 64, 512, 4096)[: rng.randint(1, 5)]) for _ in range(rng.randint(1, 300))]
    groups = KVGroups.of(windows, length)
    assert len(set(zip(groups.of_layer, groups.tensor_of_layer, strict=True))) == len(windows)
    assert len(groups.windows) <= MAX_KV_GROUPS
    reach = [window if 0 < window < length else 0 for window in windows]
    assert [groups.windows[group] for group in groups.of_layer] == reach
    assert set(groups.of_layer) == set(range(len(groups.windows)))
    assert max(groups.tensor_of_layer) < groups.layers_per_group
    held = sum(groups.layers_per_group * (window or length) for window in groups.windows)
    if len(windows) <= MAX_KV_GROUPS:  # a group for each layer is also possible
        least = sum(window or length for window in reach)
        assert held * (1 + COST_OF_GROUP * len(groups.windows)) <= least * (1 + COST_OF_GROUP * len(windows)) + 1e-6


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40, 100])
def test_the_most_blocks_of_a_sequence_are_what_its_chunks_need(window):
    """The formula is compared with the definition for every division into chunks."""
    length, size, groups = 90, 16, KVGroups((0, window), (0, 1), (0, 0), 1)
    for most in (1, 7, 16, 33, 200):
        needed = [
            last // size - max(0, first - window + 1) // size + 1
            for first in range(length)
            for last in range(first, min(first + most, length))
        ]
        assert max(needed) <= groups.blocks_of_sequence(length, size, most) - -(-length // size)
        if most <= 16 and window <= 40:  # otherwise the sequence ends within the longest span
            assert max(needed) == groups.blocks_of_sequence(length, size, most) - -(-length // size)


def held_tokens(windows: list[int], length: int) -> float:
    """The size of the blocks of a sequence of `length` tokens, in units of one token of all layers."""
    groups = KVGroups.of(windows, length)
    blocks = groups.blocks_of_sequence(length, 16, most_at_once=1)
    return blocks * 16 * groups.layers_per_group / len(windows)


def test_a_long_sequence_holds_its_windows():
    assert held_tokens([0] * 32, 32768) == 32768
    assert held_tokens(MISTRAL_7B, 32768) == 4096 + 16
    assert held_tokens(GEMMA_3_1B, 32768) < 32768 / 5.5


@pytest.fixture
def folder(tmp_path):
    write_checkpoint("gemma3-one-layer-fills-up-a-group", tmp_path)  # two full layers, three with windows of 24
    return tmp_path


def config(folder, **cache) -> Config:
    scheduler = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64)
    return Config(ModelConfig(model=str(folder), device="cpu"), CacheConfig(**cache), scheduler)


def test_a_rank_reports_its_groups_and_sizes(folder):
    per_block = 2 * 2 * 2 * 32 * 4 * 16  # keys and values, layers, heads, elements, bytes, tokens
    model = ours(folder)
    for cache, num_blocks in (({}, 2 * (32 + 2 * 7)), ({"kv_cache_memory_bytes": 100 * per_block}, 100)):
        ready = Rank(config(folder, **cache), TensorParallelGroup(), model, None, None, 0.0).ready()
        assert ready.kv_groups == (KVGroup(0), KVGroup(24), KVGroup(24))
        assert ready.kv_bytes_per_block == per_block
        assert ready.num_blocks == num_blocks
    with pytest.raises(
        ConfigError,
        match=f"hold 45 KV blocks of {per_block} bytes, .* 512 tokens needs 46; .* or max_num_batched_tokens$",
    ):
        blocks_that_fit(config(folder, kv_cache_memory_bytes=45 * per_block), model.geometry, 1, 0, torch.float32)


def test_a_rank_executes_steps_of_rows_with_a_table_for_each_group(folder):
    rank = Rank(config(folder), TensorParallelGroup(), ours(folder), None, None, 0.0)
    rank.create_kv_cache(46, lambda done, of: None)
    tables = pack_ids([1, 2]), pack_ids([3, 4]), pack_ids([5, 6])
    row = NewRow(0, pack_ids(range(3, 23)), 20, 0, tables, 7, (2,), SamplingParams(logprobs=1))
    output = rank.steps.execute(SchedulerOutput(1, 1, (row,), chunks=(Chunk(0, 20),)))
    assert len(output.token_ids) == 4
    assert output.nan_indices == b""
    assert rank.facts()["kv_blocks"] == "46"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_cache_has_as_many_tensors_as_a_group_has_layers(folder, dtype):
    geometry = ours(folder).geometry
    groups = layout_of(config(folder), geometry, 1, dtype).groups
    cache = KVCache.allocate(geometry, 7, 16, dtype=dtype, groups=groups)
    places = [tensor.data_ptr() for tensor in cache.keys]
    assert [places.index(place) for place in places] == [0, 0, 2, 2, 0]  # layer 4 shares the tensors of layer 0
    assert len(cache.values) == 5
    held = {t.data_ptr(): t.nbytes for t in (*cache.keys, *cache.values, *(s for pair in cache.scales for s in pair))}
    assert sum(held.values()) == 7 * geometry.kv_bytes_per_block(16, 1, dtype, groups.layers_per_group)


def test_blocks_hold_as_many_layers_as_fit_and_shared_layers_take_no_memory(tmp_path):
    """As Gemma 4 E2B: layers with full attention have keys of twice the size; the last layers read those of others."""
    write_checkpoint("gemma4", tmp_path)
    geometry = ours(tmp_path).geometry
    groups = layout_of(config(tmp_path), geometry, 1, torch.float32).groups
    own = [layer for layer in range(8) if geometry.kv_source(layer) == layer]
    assert (own, geometry.kv_sources[5:]) == ([0, 1, 2, 3, 4], (2, 4, 2))
    assert all(
        groups.layers_per_group == area * unit // 2 for area, unit in zip(groups.areas, groups.table_units, strict=True)
    )
    cache = KVCache.allocate(geometry, 7, 16, groups=groups)
    places = [tensor.data_ptr() for tensor in cache.keys]
    assert [places[layer] for layer in (5, 6, 7)] == [places[layer] for layer in (2, 4, 2)]
    assert [tuple(cache.keys[layer].shape[1:]) for layer in (0, 2)] == [(1, 16, 16), (1, 16, 32)]
    assert sum(block.nbytes for block in cache.blocks) == 7 * 2 * groups.layers_per_group * 16 * 16 * 4
