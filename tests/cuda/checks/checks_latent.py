"""Checks of the kernels of latent attention, each for one case on any launcher."""

import torch

from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.geometry.layer_options import Latent
from paged_serve.workers.kernels.cuda.experts.products import LARGE, SMALL, head_product
from paged_serve.workers.kernels.cuda.latent.latent_attention import LatentHeadsShape
from paged_serve.workers.kernels.cuda.latent.rows import cache_latents, rotate_heads

from ...kernel_oracles import normalised, rotated
from ...workers.cache_views import writing_view
from ..small_floats import ROUNDING
from .checks_elementwise import EPS, UNTOUCHED, bits, inner_of, untouched
from .expert_case import in_shape, random
from .latent_case import NARROW, WIDE, batch

BF16, FP16 = torch.bfloat16, torch.float16
USUAL = LatentHeadsShape(BF16, 5, 48, 32, 16)
ODD = LatentHeadsShape(FP16, 3, 96, 80, 32)  # five pairs of dims for four warps


def check_latent_attention(launcher, heads, lengths):
    """Close to float64, and the same bits in other shapes of blocks, split or not."""
    cases = batch(heads, lengths)
    found = cases.run(launcher)
    cases.assert_right(found)
    assert torch.equal(found, cases.run(launcher, NARROW, split_tokens=0))
    assert torch.equal(found, cases.run(launcher, WIDE, split_tokens=1 << 10))


def check_cached_latents(launcher, dtype, sizes, tokens, device="cpu"):
    generator, size = random(sizes.kv_rank), sizes.cached_dim
    wide = torch.randn(tokens, size + 8, generator=generator).to(dtype)
    wide[0] /= 1024  # so small that eps counts
    latents, weight = wide[:, 8:], torch.randn(sizes.kv_rank, generator=generator)
    turns = torch.rand((tokens + 9, sizes.rope_dim // 2), generator=generator) * 6.28
    angles = torch.cat((turns.cos(), turns.sin()), 1)
    positions, slots = torch.randperm(tokens + 9, generator=generator)[:tokens], torch.randperm(48)[:tokens]
    slots[1::3] = -1
    cache = untouched(dtype, device, 3, 1, 16, size)
    on_device = [each.to(device) for each in (wide, weight, angles, positions, slots)]
    view = writing_view(*on_device[3:], cache[1:-1], cache[1:-1])
    cache_latents(launcher, on_device[0][:, 8:], on_device[1], EPS, on_device[2], view, 0, sizes)
    found = inner_of(cache).view(48, size)
    used = slots >= 0
    others = torch.ones(48, dtype=torch.bool)
    others[slots[used]] = False
    assert (bits(found[others]) == UNTOUCHED).all(), "slots without a token were written"
    key = rotated(latents[:, sizes.kv_rank :].unsqueeze(1), angles[positions])[:, 0]
    exact = torch.cat([normalised(latents[:, : sizes.kv_rank], weight, EPS), key], 1)[used]
    off = (found[slots[used]].double() - exact).abs()
    assert (off <= 1.01 * ROUNDING[dtype] * exact.abs() + exact.abs().amax(1, keepdim=True) * 2.0**-21).all()


def check_rotated_heads(launcher, dtype, heads, sizes, tokens, device="cpu"):
    query = torch.randn(tokens, heads, sizes.query_dim, generator=random(heads)).to(dtype)
    turns = torch.rand((tokens + 9, sizes.rope_dim // 2), generator=random(2)) * 6.28
    angles = torch.cat((turns.cos(), turns.sin()), 1)
    positions = torch.randperm(tokens + 9, generator=random(3))[:tokens]
    out = untouched(dtype, device, tokens, heads, sizes.cached_dim)
    on_device = [each.to(device) for each in (query, angles, positions)]
    rotate_heads(launcher, *on_device, sizes, out[1:-1])
    found = inner_of(out)
    assert (bits(found[:, :, : sizes.kv_rank].contiguous()) == UNTOUCHED).all(), "other elements were written"
    exact = rotated(query[:, :, sizes.nope_dim :], angles[positions])
    off = (found[:, :, sizes.kv_rank :].double() - exact).abs()
    assert (off <= 1.01 * ROUNDING[dtype] * exact.abs() + exact.abs().amax(-1, keepdim=True) * 2.0**-21).all()


def check_head_product(launcher, dtype, rows, heads, inputs, outputs, device="cpu"):
    """Each head's product is close to float64, and has the same bits in every shape and alone."""
    x = torch.randn(rows, heads, inputs + 8, generator=random(1)).to(dtype)
    each = [torch.randn(outputs, inputs, generator=random(e)).to(dtype) for e in range(heads)]
    weight = stacked_experts("heads", each).to(device)

    def run(x):
        out = untouched(dtype, device, len(x), heads, outputs + 4)
        head_product(launcher, x.to(device)[:, :, :inputs], weight, out[1:-1, :, :outputs])
        found = inner_of(out)
        assert (bits(found[:, :, outputs:].contiguous()) == UNTOUCHED).all(), "memory between heads was written"
        return found[:, :, :outputs]

    found = in_shape(SMALL, lambda: run(x))
    assert torch.equal(found, in_shape(LARGE, lambda: run(x)))
    assert torch.equal(run(x[-1:]), found[-1:])
    exact = torch.stack([x[:, head, :inputs].double() @ own.double().t() for head, own in enumerate(each)], 1)
    assert ((found.double() - exact).abs() <= inputs * 2.0**-21 + ROUNDING[dtype] * exact.abs()).all()


def check_latent(launcher, device="cpu"):
    """All checks in small cases, which must detect a bug planted anywhere."""
    check_latent_attention(launcher, USUAL, [(1, 0), (1, 63), (7, 574), (9, 120)])
    check_latent_attention(launcher, ODD, [(2, 130), (1, 1030)])
    sizes = Latent(0, 264, 24, 48, 20)
    check_cached_latents(launcher, BF16, sizes, 7, device)
    check_rotated_heads(launcher, BF16, 13, sizes, 3, device)
    check_head_product(launcher, BF16, 18, 3, 136, 70, device)
    assert launcher.stats.bank_conflicts == 0
