"""The kernels of latent attention have the bits of the general ones, of every built instruction set, in both orders."""

import pytest
import torch

from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.geometry.layer_options import Latent
from paged_serve.workers.kernels.cpu.attention import attention, cached_head_dim
from paged_serve.workers.kernels.cpu.elementwise import normalise, rotate_and_cache
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.latent.latent_attention import (
    cache_latents,
    head_gemm,
    latent_attention,
    rotate_heads,
)
from paged_serve.workers.kernels.cpu.packing import pack_float

from ...cache_views import reading_view, writing_view
from .test_cpu_attention import make_case

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = [(0, 1), (6, 1), (63, 1), (127, 1), (200, 1), (1100, 1), (0, 65), (3, 40), (130, 20)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "value_dim", "heads"), [(48, 32, 4), (52, 36, 5), (80, 64, 40), (96, 90, 16)])
def test_attention_is_that_of_one_kv_head_whose_values_are_its_keys(
    pools_of_each_order, dtype, head_dim, value_dim, heads
):
    case = make_case(ROWS, (dtype, dtype), group=heads, kv_heads=1, head_dim=head_dim)
    starts = torch.tensor(case.starts).int()
    lens = torch.tensor([sum(row) for row in case.rows]).int()
    view = reading_view(case.cache[0], case.cache[0], case.tables, starts, lens)
    expected = attention(pools_of_each_order[0], case.query, view, 0, case.options)[:, :, :value_dim]
    assert expected.isfinite().all()
    for pool in pools_of_each_order:
        out = torch.full((len(case.query), heads, value_dim), torch.nan, dtype=dtype)
        assert torch.equal(latent_attention(pool, case.query, view, 0, case.options, out), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_token_of_many_heads_has_the_same_bits_on_any_number_of_threads(pools_of_each_order, dtype):
    case = make_case([(2500, 1)], (dtype, dtype), group=40, kv_heads=1, head_dim=48)
    one, three = (case.run(pool) for pool in pools_of_each_order)
    assert torch.equal(one, three)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "outputs", "inputs"), [(3, 36, 24), (16, 128, 64), (1, 64, 7)])
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_products_of_heads_have_the_bits_of_gemm(pools_of_each_order, dtype, heads, outputs, inputs, rows):
    weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(heads)]
    stacked = pack_float(stacked_experts("", weights))
    x, out = torch.randn(rows, heads, inputs + 5).to(dtype), torch.zeros(rows, heads, outputs + 3, dtype=dtype)
    for pool in pools_of_each_order:
        head_gemm(pool, x[:, :, :inputs], stacked, out[:, :, :outputs])
        assert (out[:, :, outputs:] == 0).all()
        for head, weight in enumerate(weights):
            expected = gemm(pool, x[:, head, :inputs].contiguous(), pack_float(weight))
            assert torch.equal(out[:, head, :outputs], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kv_rank", "rope_dim"), [(32, 16), (35, 6), (512, 64)])
def test_cached_rows_are_normalised_and_rotated_as_by_the_general_kernels(cpu_pools, dtype, kv_rank, rope_dim):
    sizes, tokens, heads = Latent(0, kv_rank, 9, rope_dim, 8), 7, 3
    padded = cached_head_dim(sizes.cached_dim)
    latents = torch.randn(tokens, sizes.cached_dim + 3).to(dtype)[:, : sizes.cached_dim]
    query = torch.randn(tokens, heads, sizes.query_dim).to(dtype)
    norm, angles = torch.rand(kv_rank), torch.rand(50, rope_dim)
    positions, slots = torch.arange(20, 20 + tokens), torch.randperm(48)[:tokens]
    for pool in cpu_pools:
        cache = torch.full((3, 1, 16, padded), torch.nan, dtype=dtype)
        cache_latents(pool, latents, norm, 1e-6, angles, writing_view(positions, slots, cache, cache), 0, sizes)
        rows = cache.view(-1, padded)
        assert rows[slots].isfinite().all()
        assert rows.isfinite().all(1).sum() == tokens
        expected = normalise(pool, latents[:, :kv_rank].contiguous(), norm, None, 1e-6, is_centred=False)
        assert torch.equal(rows[slots, :kv_rank], expected)
        assert (rows[slots, sizes.cached_dim :] == 0).all()

        joined = torch.cat([query[:, :, 9:].flatten(1), *[latents[:, kv_rank:]] * 2], dim=1)
        shape = 3, 1, 16, cached_head_dim(rope_dim)
        view = writing_view(positions, slots, *(torch.empty(shape, dtype=dtype) for _ in "kv"))
        turned = rotate_and_cache(pool, joined, angles, view, 0, torch.empty(tokens, heads, rope_dim, dtype=dtype))
        key = view.cache.keys[0].view(-1, shape[3])[slots, :rope_dim]
        assert torch.equal(rows[slots, kv_rank : sizes.cached_dim], key)
        out = torch.zeros(tokens, heads, sizes.cached_dim, dtype=dtype)
        rotate_heads(pool, query, angles, positions, sizes, out)
        assert torch.equal(out[:, :, kv_rank:], turned)
        assert (out[:, :, :kv_rank] == 0).all()
