"""Attention in tile order: its two products equal their definition bit for bit. test_cpu_attention.py has the rest."""

import pytest
import torch

from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.attention import attention

from ..cache_views import reading_view
from . import tile_oracle

BLOCK = 16


@pytest.fixture(scope="module")
def tile_pool(cpu_library):
    pool = cpu.Pool(cpu_library, [-1], summation="tile")
    yield pool
    pool.close()


def attend(pool, query, keys, values, scale=1.0):
    """Attention of `query` [heads, head_dim], a request's last token, to `keys` and `values` [length, head_dim]."""
    blocks = -(-len(keys) // BLOCK)
    cache = torch.zeros(2, blocks, 1, BLOCK, keys.shape[1], dtype=torch.bfloat16)
    for held, rows in zip(cache, (keys, values), strict=True):
        held.view(-1, keys.shape[1])[: len(rows)] = rows
    lens = torch.tensor([len(keys)], dtype=torch.int32)
    places = torch.arange(blocks, dtype=torch.int32)[None], torch.tensor([0, 1], dtype=torch.int32), lens
    return attention(pool, query[None], reading_view(cache[0], cache[1], *places), 0, AttentionOptions(scale))[0]


@pytest.mark.parametrize("heads", [1, 5, 17, 40])
@pytest.mark.parametrize("length", [1, 3, 33, 64, 65, 100, 128, 200, 1024, 1100])
def test_values_are_summed_as_defined(tile_pool, length, heads):
    """All scores are 0, so all weights are 1; values nearly cancel, so that every bit of the sums is visible."""
    generator = torch.Generator().manual_seed(length)
    spread = torch.logspace(-8, 8, 80, base=2.0)
    values = (
        torch.randn(length, 80, generator=generator) * torch.rand(length, 1, generator=generator) * spread
    ).bfloat16()
    for place in range(max(1, length - 3), length):
        values[place] = 0
        values[place] = -values.double().sum(0).bfloat16()
    keys = torch.randn(length, 80, generator=generator).bfloat16()
    found = attend(tile_pool, torch.zeros(heads, 80, dtype=torch.bfloat16), keys, values)
    expected = tile_oracle.mean_of_values(values).bfloat16()
    assert torch.equal(found, expected.expand(heads, -1))


@pytest.mark.parametrize("head_dim", [16, 32, 48, 80, 128, 256])
def test_scores_are_summed_as_defined(tile_pool, head_dim):
    """Scores are nearly 0 and scaled by 2^19: a difference in the last bit changes the weight by about 0.03."""
    generator = torch.Generator().manual_seed(head_dim)
    query = torch.randn(40, head_dim, generator=generator).bfloat16()
    key = torch.randn(head_dim, generator=generator).bfloat16()
    key[-2:] = 1
    query[:, -2:] = 0
    for place in (-2, -1):  # subtracts the rest of the score, eight bits at a time
        query[:, place] = -tile_oracle.product(query, key[None])[:, 0].bfloat16()
    scores = tile_oracle.product(query, key[None])[:, 0].double() * 2.0**19
    assert (scores.abs() < 4).sum() > 10
    values = torch.tensor([[0.0], [1.0]]).expand(2, head_dim).bfloat16()
    found = attend(tile_pool, query, torch.stack([torch.zeros_like(key), key]), values, scale=2.0**19)
    assert torch.allclose(found[:, 0].double(), scores.sigmoid(), atol=0.005, rtol=0)
