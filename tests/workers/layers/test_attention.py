"""The attention of both torch backends against its definition in float64, computed one query at a time."""

import pytest
import torch

from paged_serve.workers.backends.torch.attention import TorchOracle
from paged_serve.workers.backends.torch.attention_tiles import BATCH_WORK, TILE_KEYS, tile_batches
from paged_serve.workers.backends.torch.single_tokens import SingleTokenAttention
from paged_serve.workers.geometry.layer_options import (
    AttentionMask,
    AttentionOptions,
    alibi_slopes,
    distance_buckets,
)
from paged_serve.workers.kv.cache_view import CacheView
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.activation import capped

from ...kernel_oracles import attended, bias_of, sinks_of


def random_step(rows, block_size, kv_heads, head_dim, seed=0):
    """A view of a cache for rows of (computed tokens, new tokens). Slots that are not written hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    blocks_of = [-(-(old + new) // block_size) for old, new in rows]
    ids = torch.randperm(sum(blocks_of) + 3, generator=generator).tolist()
    tables = [[ids.pop() for _ in range(count)] for count in blocks_of]
    shape = (sum(blocks_of) + 3, kv_heads, block_size, head_dim)
    cache = KVCache([torch.full(shape, torch.nan)], [torch.full(shape, torch.nan)], block_size)
    kv = [torch.randn(2, old + new, kv_heads, head_dim, generator=generator) for old, new in rows]
    starts = [0]
    for _, new in rows:
        starts.append(starts[-1] + new)
    positions = [position for old, new in rows for position in range(old, old + new)]
    owners = [row for row, (_, new) in enumerate(rows) for _ in range(new)]

    def slot(row, position):
        return tables[row][position // block_size] * block_size + position % block_size

    view = CacheView(
        cache=cache,
        positions=torch.tensor(positions),
        row_starts=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor([old + new for old, new in rows], dtype=torch.int32),
        longest=max(old + new for old, new in rows),
        block_tables=torch.tensor([t + [2**30] * (max(blocks_of) - len(t)) for t in tables], dtype=torch.int32),
        slots=torch.tensor([slot(row, position) for row, position in zip(owners, positions, strict=True)]),
        num_decode_rows=0,
    )
    for row, (old, _) in enumerate(rows):
        for position in range(old):
            block, offset = divmod(slot(row, position), block_size)
            if offset == 0:
                cache.values[0][block] = 0
            cache.keys[0][block, :, offset], cache.values[0][block, :, offset] = kv[row][:, position]
    return view, kv


OPTIONS = [
    *({"window": window} for window in (0, 1, 33, 64)),
    *({"cap": 0.7}, {"alibi": True}, {"alibi": True, "cap": 2.0, "window": 50}),
    *({"attention_chunk": 33}, {"attention_chunk": 64, "sinks": True}, {"sinks": True, "cap": 2.0, "alibi": True}),
]
LAYOUTS = [(4, 2, 32), (3, 3, 20), (7, 1, 8), (8, 1, 128)]  # heads, KV heads, head_dim
BACKENDS = [TorchOracle, SingleTokenAttention]


def options_of(heads: int, alibi: bool = False, sinks: bool = False, reach: int = 0, **others) -> AttentionOptions:
    of_heads = {"slopes": alibi_slopes(heads) if alibi else None, "sinks": sinks_of(heads) if sinks else None}
    of_heads["bias"] = bias_of(heads, reach) if reach else None
    return AttentionOptions(0.2, **of_heads, **others)


def check(backend, rows, block_size, heads, kv_heads, head_dim, options):
    view, kv = random_step(rows, block_size, kv_heads, head_dim)
    cache = view.cache
    query = torch.randn(len(view.positions), heads, head_dim, generator=torch.Generator().manual_seed(1))
    new = torch.cat([row[:, old:] for row, (old, _) in zip(kv, rows, strict=True)], 1)
    attention = backend()
    [plan] = attention.plan([view], heads)
    blocks, offsets = view.slots // block_size, view.slots % block_size
    cache.keys[0].transpose(1, 2)[blocks, offsets], cache.values[0].transpose(1, 2)[blocks, offsets] = new
    found = attention.attend(plan, 0, query, options)
    queries = query.split([new for _, new in rows])
    expected = torch.cat([attended(each, *row, options) for each, row in zip(queries, kv, strict=True)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), LAYOUTS)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_matches_its_definition(backend, block_size, heads, kv_heads, head_dim, options):
    rows = [(0, 1), (31, 1), (32, 1), (200, 1), (0, 5), (0, 100), (47, 66), (15, 17), (64, 2)]
    check(backend, rows, block_size, heads, kv_heads, head_dim, options_of(heads, **options))


@pytest.mark.parametrize("options", [{}, {"alibi": True, "cap": 2.0}, {"reach": 20}, {"reach": 128}], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), LAYOUTS[:2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bidirectional_tokens_attend_to_all_keys_of_their_row(backend, heads, kv_heads, head_dim, options):
    rows = [(0, 1), (0, 31), (0, 32), (0, 100), (0, 130)]
    check(backend, rows, 16, heads, kv_heads, head_dim, options_of(heads, is_bidirectional=True, **options))


def test_a_cap_keeps_signs_and_small_values():
    x = torch.tensor([0.0, 1e-3, -1e-3, 5.0, -5.0, 400.0, -torch.inf, torch.nan])
    expected = 30.0 * torch.tanh(x.double() / 30.0)
    torch.testing.assert_close(capped(x.clone(), 30.0).double(), expected, rtol=0, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 112])
def test_the_slopes_of_alibi_are_those_of_transformers(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), expected, rtol=1e-6, atol=0)


def test_the_buckets_of_distances_are_those_of_transformers():
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-300, 301)
    expected = MPNetEncoder.relative_position_bucket(distances)
    assert torch.equal(distance_buckets(32, 128)[distances.clamp(-128, 128) + 128], expected)


def test_a_window_visits_only_its_own_tiles_and_memory_stays_bounded():
    view, _ = random_step([(5000, 1), (3000, 1), (2000, 64)], 16, 1, 1)
    assert [len(tiles.strip_of_tile) for tiles in tile_batches(view, 1, AttentionMask(TILE_KEYS))] == [4, 6]
    for tiles in tile_batches(view, 1, AttentionMask()):
        most_of_one = tiles.tiles_at and len(tiles.tiles_at) * tiles.strip_tokens
        assert len(tiles.strip_of_tile) * tiles.strip_tokens <= BATCH_WORK + most_of_one


def test_every_token_is_in_one_strip():
    view, _ = random_step([(9, 1), (3, 1), (0, 130), (40, 64), (0, 7)], 16, 1, 1)
    seen = torch.cat([tiles.tokens.flatten() for tiles in tile_batches(view, 2, AttentionMask())])
    assert sorted(set(seen.tolist())) == list(range(len(view.positions)))
