"""Products with e4m3 codes have the bits of products with the dequantized weights, in every form and order."""

from itertools import product

import pytest
import torch

from paged_serve.workers.backends.cpu.products.fp8_product import LARGEST_SCALE, LEAST_SCALE, is_fp8_product
from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.checkpoint.weight_forms import Fp8BlockWeight, Fp8Weight, joined
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.experts.products import expert_gemm
from paged_serve.workers.kernels.cpu.experts.routing import dispatch_rows, route_experts
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.loading import packed

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
ROWS = (1, 2, 5, 6, 7, 13, 40)
CODES = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)


def random(seed):
    return torch.Generator().manual_seed(seed)


def codes_of(outputs, inputs, seed=1):
    """Every code that is a number, at random places."""
    return CODES[torch.randint(len(CODES), (outputs, inputs), generator=random(seed))].view(E4M3)


def scales_of(*shape, seed=2):
    return torch.rand(shape, generator=random(seed)) * 0.01 + 1e-4


def blocks(outputs, inputs, group, rows=64, seed=1):
    """Scales of `rows` outputs and `group` inputs."""
    scales = scales_of(-(-outputs // rows), inputs // group, seed=seed + 10).repeat_interleave(rows, 0)[:outputs]
    return Fp8BlockWeight(codes_of(outputs, inputs, seed), scales.contiguous(), "fp8")


WEIGHTS = {  # outputs are whole panels or not, groups of one or many chunks
    "a scale per output": lambda: Fp8Weight(codes_of(200, 260), scales_of(200)),
    "one scale": lambda: Fp8Weight(codes_of(128, 96), torch.full((128,), 0.004)),
    "negative and zero": lambda: Fp8Weight(codes_of(128, 36), torch.tensor([-0.25, 0.0]).repeat_interleave(64)),
    "signs and zeros among outputs": lambda: Fp8Weight(codes_of(70, 36), scales_of(70) * (torch.arange(70) % 3 - 1)),
    "blocks": lambda: blocks(192, 512, 128),
    "blocks that end inside panels": lambda: blocks(200, 384, 128, rows=48),
    "parts of blocks": lambda: blocks(70, 192, 16),
    "the least groups": lambda: blocks(64, 24, 4),
}


def assert_same_products(pools, weight, segments, rows=ROWS):
    """With one thread for each number of rows, and with three for the first and the last one."""
    values = weight.dequantized()
    fp8, floats = packed(pools[0], weight), packed(pools[0], values.to(BF16))
    bias = torch.randn(len(values), generator=random(3))
    for count, each in product(rows, segments):
        x = torch.randn(count, values.shape[1], generator=random(4)).to(BF16)
        expected = gemm(pools[0], x, floats, bias, out_dtype=torch.float32, segments=each)
        for pool in pools if count in (rows[0], rows[-1]) else pools[:1]:
            found = gemm(pool, x, fp8, bias, out_dtype=torch.float32, segments=each)
            assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), (count, each)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_product_has_the_bits_of_the_dequantized_weight(name, pools_of_each_order):
    weight = WEIGHTS[name]()
    assert is_fp8_product(weight, BF16)
    segments = [count for count in (1, 2, 4) if weight.shape[1] % (count * 4) == 0]
    assert_same_products(pools_of_each_order, weight, segments[:: len(segments) - 1 or 1])


def test_many_rows_and_long_sums_have_the_bits_of_the_dequantized_weight(pools_of_each_order):
    assert_same_products(pools_of_each_order, blocks(64, 1536, 128), (1, 4), rows=(1, 150))


def test_each_code_has_its_value(cpu_pools):
    """One input of each row is not zero, so a product is one value; it is exact in bfloat16."""
    codes = torch.cat([CODES, CODES[:2]]).view(E4M3).unsqueeze(0).repeat(64, 1)
    rows = torch.eye(codes.shape[1], dtype=BF16)
    for scales in (torch.ones(64), 2.0 ** -torch.arange(64)):
        weight = Fp8Weight(codes, scales)
        found = gemm(cpu_pools[0], rows, packed(cpu_pools[0], weight), out_dtype=torch.float32)
        assert torch.equal(found.T, codes.float() * scales.unsqueeze(1))
        for row in (0, 9, 255):
            one = gemm(cpu_pools[0], rows[row : row + 1], packed(cpu_pools[0], weight), out_dtype=torch.float32)
            assert torch.equal(one[0], found[row])


@pytest.mark.parametrize("scales", [torch.ones(64), torch.arange(1.0, 65.0)], ids=["one scale", "a scale per output"])
def test_a_sum_that_is_a_negative_zero_keeps_the_sign_that_the_codes_give_it(scales, cpu_pools):
    """The first product of a sum is below the least normal number; the others are zeros with all signs."""
    x = torch.tensor([[1.0, 2.0**-126, 1.0, -1.0]], dtype=BF16)
    zeros = torch.tensor([0x00, 0x80], dtype=torch.uint8)
    codes = torch.full((64, 4), 0x81, dtype=torch.uint8)
    codes[:8, [0, 2, 3]] = torch.cartesian_prod(zeros, zeros, zeros)
    codes[8:, [0, 2, 3]] = codes[:8, [0, 2, 3]].repeat(7, 1)
    weight = Fp8Weight(codes.view(E4M3), scales)
    for pool in cpu_pools:
        expected = gemm(pool, x, packed(pool, weight.dequantized().to(BF16)), out_dtype=torch.float32)
        assert not expected.any()
        assert 0 < int(expected.signbit().sum()) < 64
        found = gemm(pool, x, packed(pool, weight), out_dtype=torch.float32)
        assert torch.equal(found.signbit(), expected.signbit())


def test_a_scale_that_is_a_negative_zero_inverts_the_signs_of_its_group(cpu_pools):
    """All products are negative zeros, the first because it is below the least normal number."""
    x = torch.tensor([[2.0**-126, *[1.0] * 31]], dtype=BF16)
    codes = torch.tensor([0x81, *[0x80] * 15, *[0x38] * 16], dtype=torch.uint8).repeat(64, 1)
    weight = Fp8BlockWeight(codes.view(E4M3), torch.tensor([1.0, -0.0]).repeat(64, 1), "fp8")
    assert is_fp8_product(weight, BF16)
    for pool in cpu_pools:
        expected = gemm(pool, x, packed(pool, weight.dequantized().to(BF16)), out_dtype=torch.float32)
        found = gemm(pool, x, packed(pool, weight), out_dtype=torch.float32)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_the_ends_of_the_range_of_scales_are_exact(cpu_pools):
    for scale in (LEAST_SCALE, LARGEST_SCALE):
        weight = Fp8Weight(codes_of(64, 64), torch.full((64,), scale))
        assert is_fp8_product(weight, BF16)
        found = gemm(cpu_pools[0], torch.eye(64, dtype=BF16), packed(cpu_pools[0], weight), out_dtype=torch.float32)
        assert torch.equal(found.T, weight.dequantized().to(BF16).float())


def test_a_row_of_an_expert_has_the_bits_of_its_own_dequantized_weight(pools_of_each_order):
    """70 outputs are no whole panels; expert 3 has no rows."""
    experts = Experts(6, 2, 40)
    each = [joined([blocks(30, 192, 64, 16, seed=e), blocks(40, 192, 64, 16, seed=50 + e)])[0] for e in range(6)]
    logits = torch.randn(37, 6, generator=random(5))
    logits[:, 3] = -100.0
    x = torch.randn(37, 192, generator=random(7)).to(BF16)
    for pool in pools_of_each_order:
        weight, buffers = packed(pool, stacked_experts("experts", each)), Buffers()
        routing = route_experts(pool, logits, experts, range(6), None, buffers)
        rows = dispatch_rows(pool, x, routing, buffers)
        out = torch.full((routing.max_places, 70), torch.nan)
        expert_gemm(pool, rows, weight, None, routing, out, buffers)
        for expert, one in enumerate(each):
            own = (routing.experts == expert).any(1).nonzero()[:, 0]
            expected = gemm(pool, x[own], packed(pool, one.dequantized().to(BF16)), out_dtype=torch.float32)
            assert torch.equal(out[routing.starts[expert] : routing.starts[expert + 1]], expected), expert


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_codes_that_are_no_numbers_have_no_product(code):
    weight = blocks(64, 64, 32)
    weight.codes.view(torch.uint8)[63, 63] = code
    assert not is_fp8_product(weight, BF16)


def test_what_the_kernels_do_not_multiply():
    codes = codes_of(64, 64)
    assert not is_fp8_product(blocks(64, 64, 32), torch.float16)
    assert not is_fp8_product(blocks(64, 64, 2), BF16)
    assert not is_fp8_product(Fp8Weight(codes_of(64, 62), torch.ones(64)), BF16)
    for scale in (LEAST_SCALE / 2, LARGEST_SCALE * 2, torch.inf, torch.nan):
        assert not is_fp8_product(Fp8Weight(codes, torch.ones(64).index_fill_(0, torch.tensor([3]), scale)), BF16)
