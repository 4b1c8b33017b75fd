"""Products and tables of GGUF blocks on every built instruction set, against the gguf package and exact sums."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from paged_serve.workers.checkpoint.blocks.block_weight import PRODUCT_FORMATS, BlockWeight
from paged_serve.workers.checkpoint.blocks.grids import GRIDS
from paged_serve.workers.checkpoint.conversion import NotFiniteError
from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.experts.products import expert_gemm
from paged_serve.workers.kernels.cpu.experts.routing import dispatch_rows, route_experts
from paged_serve.workers.kernels.cpu.gemm import embed_rows, gemm, sum_parts
from paged_serve.workers.kernels.cpu.loading import packed_blocks

from ....gguf_files import SCALES_AT, Type, put_scales, random_blocks

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = {name: gguf.GGML_QUANT_SIZES[Type[name]] for name in PRODUCT_FORMATS}
# Of a block of 256 inputs, where they are not those of the file:
PANEL_BYTES = {
    "IQ2_XXS": 102,
    "IQ2_XS": 106,
    "IQ2_S": 106,
    "IQ3_XXS": 134,
    "IQ3_S": 134,
    "IQ1_S": 70,
    "IQ1_M": 78,
    "TQ1_0": 66,
}
# Of properties that all formats have from the same code, formats with grids are tested nightly.
MOST_FORMATS = [pytest.param(name, marks=[pytest.mark.nightly] * (name in GRIDS)) for name in PRODUCT_FORMATS]


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weight_of(name: str, outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> BlockWeight:
    blocks = torch.from_numpy(random_blocks(Type[name], (outputs, inputs), seed)).view(outputs, -1, SIZES[name][1])
    return BlockWeight(name, (blocks,), inputs, 0, dtype)


def set_scales(blocks: Tensor, name: str, at: int, scale: float) -> None:
    """The float16 scale at byte `at` of each of `blocks` [..., bytes] becomes `scale`."""
    put_scales(name, blocks.numpy(), at, np.full(blocks.shape[:-1], scale, dtype=np.float16))


def values_of(weight: BlockWeight) -> Tensor:
    stored = torch.cat(weight.parts).flatten(1).numpy()
    return torch.from_numpy(gguf.dequantize(stored, Type[weight.format]).copy())


def share_of(weight: BlockWeight, first: int, past: int) -> BlockWeight:
    """The inputs [first, past), which may begin and end inside a block."""
    size = SIZES[weight.format][0]
    parts = tuple(part[:, first // size : -(-past // size)] for part in weight.parts)
    return replace(weight, parts=parts, inputs=past - first, skipped=first % size)


def rounded_rows(x: Tensor) -> Tensor:
    """What products multiply: rows in int8 with a scale for 32 inputs, as float64."""
    groups = x.float().view(len(x), -1, 32)
    peak = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(peak > 0, torch.tensor(127.0) / peak, 0)).round()
    return (codes.double() * (peak / 127).double()).flatten(1)


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_rows_of_a_table_are_the_values_of_the_package_bit_for_bit(cpu_pools, name):
    weight = weight_of(name, 130, 512)
    table, ids = packed_blocks(cpu_pools[1], weight), torch.tensor([129, 0, 64, 63, 130, -1, *range(130)])
    expected = torch.cat([values_of(weight), torch.zeros(1, 512)])[torch.where((ids < 0) | (ids > 129), 130, ids)]
    assert torch.equal(embed_rows(cpu_pools[1], ids, table, torch.float32), expected)
    assert torch.equal(embed_rows(cpu_pools[1], ids, table, torch.bfloat16, multiplier=3.0), (expected * 3).bfloat16())
    inputs, num_bytes = SIZES[name]
    assert table.nbytes == 192 * 512 // inputs * PANEL_BYTES.get(name, num_bytes)  # whole panels


@pytest.mark.parametrize("rows", [1, 5, 13])
@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_a_product_without_rounding_is_exact(cpu_pools, name, rows):
    """Scales that are powers of two, and rows of small whole numbers: float32 holds every sum."""
    weight = weight_of(name, 70, 768)
    for at in SCALES_AT[name]:
        set_scales(weight.parts[0], name, at, 2.0**-6)
    x = torch.randint(-3, 4, (rows, 768), generator=random(1)).float()
    x[:, ::32] = 127.0  # of each group: its scale is 1
    residual = torch.randint(-9, 9, (rows, 70), generator=random(2)).float()
    for pool in cpu_pools:
        y = gemm(pool, x, packed_blocks(pool, weight), residual=residual)
        assert torch.equal(y.double(), x.double() @ values_of(weight).double().T + residual)


@pytest.mark.parametrize("rows", [1, 5, 13])
@pytest.mark.parametrize("byte", [0xFF, 0x80])
@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_sums_of_the_largest_codes_do_not_overflow(cpu_pools, name, byte, rows):
    weight = weight_of(name, 70, 256)
    weight.parts[0][:] = byte
    for at in SCALES_AT[name]:
        set_scales(weight.parts[0], name, at, 2.0**-6)
    x = torch.full((rows, 256), 127.0)
    x[1::3] = -127.0
    x[2::3, ::2] = -127.0
    for pool in cpu_pools:
        y = gemm(pool, x, packed_blocks(pool, weight))
        assert torch.equal(y.double(), x.double() @ values_of(weight).double().T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MOST_FORMATS)
def test_a_product_is_that_of_the_packages_values_and_rounded_rows(cpu_pools, name, dtype):
    weight, x = weight_of(name, 65, 512, dtype), torch.randn(7, 512, generator=random(3)).to(dtype)
    x[2] = 0
    y = gemm(cpu_pools[0], x, packed_blocks(cpu_pools[0], weight), out_dtype=torch.float32)
    values, rounded = values_of(weight).double(), rounded_rows(x)
    magnitude = rounded.abs() @ values.abs().T + x.abs().double() @ torch.ones(512, 65).double() * 1e-6
    assert ((y - rounded @ values.T).abs() <= 60 * 2.0**-24 * 20 * magnitude).all()
    exact = x.double() @ values.T
    assert (y - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("name", MOST_FORMATS)
def test_a_row_has_the_same_bits_among_any_rows_on_any_threads(cpu_pools, name):
    weight = packed_blocks(cpu_pools[0], weight_of(name, 200, 768))
    x = torch.randn(133, 768, generator=random(4)).bfloat16()
    for segments in (1, 4):
        every = gemm(cpu_pools[1], x, weight, segments=segments)
        assert torch.equal(gemm(cpu_pools[0], x, weight, segments=segments), every)
        for first, past in ((0, 1), (1, 3), (3, 9), (9, 29), (29, 133)):
            assert torch.equal(gemm(cpu_pools[1], x[first:past], weight, segments=segments), every[first:past])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MOST_FORMATS)
def test_shares_of_ranks_that_cut_blocks_add_up_to_the_whole(cpu_pools, name, ranks):
    inputs, pool = 768, cpu_pools[1]
    weight, x = weight_of(name, 70, inputs), torch.randn(8, inputs, generator=random(5)).bfloat16()
    parts, size = torch.empty(ranks, 8, 70), inputs // ranks
    for rank in range(ranks):
        here = slice(rank * size, (rank + 1) * size)
        share = packed_blocks(pool, share_of(weight, here.start, here.stop))
        gemm(pool, x[:, here], share, out=parts[rank], segments=4 // ranks)
    whole = gemm(pool, x, packed_blocks(pool, weight), segments=4)
    assert torch.equal(sum_parts(pool, parts, None, torch.empty_like(whole)), whole)


@pytest.mark.parametrize("name", MOST_FORMATS)
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(cpu_pools, name):
    weight, x = packed_blocks(cpu_pools[0], weight_of(name, 70, 256)), torch.randn(5, 256, generator=random(6))
    expected = gemm(cpu_pools[0], x, weight)
    x[1, 40], x[3, 200] = float("nan"), float("inf")
    y = gemm(cpu_pools[0], x, weight)
    assert y[[1, 3]].isnan().all()
    assert torch.equal(y[[0, 2, 4]], expected[[0, 2, 4]])


@pytest.mark.parametrize("name", MOST_FORMATS)
def test_a_row_whose_scale_is_below_the_normal_numbers_is_zero(cpu_pools, name):
    """The inverse of its peak would be infinite, and codes no integers, which the sanitizers find."""
    weight, x = packed_blocks(cpu_pools[0], weight_of(name, 70, 256)), torch.randn(1, 256, generator=random(7)) * 1e-37
    assert torch.equal(gemm(cpu_pools[0], x, weight), torch.zeros(1, 70))


@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_a_scale_that_is_not_finite_is_refused(cpu_pools, name):
    for at in SCALES_AT[name]:
        weight = weight_of(name, 3, 256)
        set_scales(weight.parts[0][2:, :1], name, at, float("inf"))
        with pytest.raises(NotFiniteError, match=name):
            packed_blocks(cpu_pools[0], weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCT_FORMATS)
def test_every_isa_has_the_same_bits(name, dtype):
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    x, found = torch.randn(9, 512, generator=random(7)).to(dtype), []
    x[1] *= 1e-30
    for isa in cpu.runnable_isas():
        pool = cpu.Pool(cpu.load_library(isa), [-1])
        weight = packed_blocks(pool, weight_of(name, 70, 512, dtype))
        found.append([gemm(pool, x[:n], weight, segments=n % 2 + 1) for n in (1, 2, 9)] + [weight.data])
        pool.close()
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", MOST_FORMATS)
def test_a_row_of_an_expert_has_the_bits_of_the_product_with_its_own_weight(cpu_pools, name):
    """70 outputs are no whole panels, and ten rows choose two of six experts each."""
    experts, outputs, inputs = Experts(6, 2, 40), 70, 256
    each = [weight_of(name, outputs, inputs, seed=expert) for expert in range(experts.count)]
    x, bias = torch.randn(10, inputs, generator=random(8)).bfloat16(), torch.randn(6, outputs, generator=random(9))
    logits = torch.randn(10, experts.count, generator=random(10))
    for pool in cpu_pools:
        buffers, stacked = Buffers(), stacked_experts("experts", each)
        assert isinstance(stacked, BlockWeight)
        routing = route_experts(pool, logits, experts, range(experts.count), None, buffers)
        rows = dispatch_rows(pool, x, routing, buffers)
        out = torch.full((routing.max_places, outputs), torch.nan)
        expert_gemm(pool, rows, packed_blocks(pool, stacked), bias, routing, out, buffers)
        for expert, own in enumerate(each):
            chosen = (routing.experts == expert).any(1)
            weight = packed_blocks(pool, own)
            expected = gemm(pool, x[chosen], weight, bias[expert].contiguous(), out_dtype=torch.float32)
            assert torch.equal(out[routing.starts[expert] : routing.starts[expert + 1]], expected), expert
