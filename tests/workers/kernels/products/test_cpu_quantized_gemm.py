"""int8 and int4 products of every built instruction set against products of the dequantized values; packed tables."""

from dataclasses import replace

import pytest
import torch

from paged_serve.workers.kernels.cpu.gemm import QuantizedRows, embed_rows, gemm, quantize_rows
from paged_serve.workers.kernels.cpu.packing import pack, pack_int4, pack_int8

INT8_SHAPES = [
    *[(1, 64, 64), (6, 128, 256), (1, 1, 1), (3, 63, 7), (5, 65, 129), (13, 130, 95), (66, 257, 31)],
    (130, 3, 131_072),  # more than 32 MB of rows that are widened to 16 bits
]
INT4_SHAPES = [  # rows, outputs, inputs, group size
    *[(1, 64, 64, 32), (7, 128, 256, 64), (12, 65, 256, 128), (5, 63, 96, 96), (33, 200, 64, 32)],
    *[(2, 1, 8, 8), (3, 70, 40, 8), (64, 64, 48, 24)],
]
HALVES = [torch.bfloat16, torch.float16]
HALF = 2.0**-24  # half a unit in the last place of float32


@pytest.fixture(scope="module")
def cpu_pools(pools_of_each_order):
    return pools_of_each_order


def random(seed):
    return torch.Generator().manual_seed(seed)


def int8_operands(rows, outputs, inputs, dtype=torch.bfloat16):
    x = torch.randn(rows, inputs, generator=random(0)).to(dtype)
    codes = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, generator=random(1))
    scales = torch.rand(outputs, generator=random(2)) + 0.01
    return x, codes, scales


def int4_operands(rows, outputs, inputs, group_size, with_zeros, dtype=torch.bfloat16):
    x = torch.randn(rows, inputs, generator=random(0)).to(dtype)
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, generator=random(1))
    scales = (torch.randn(outputs, inputs // group_size, generator=random(2)) * 0.01).bfloat16().float()
    zeros = torch.randint(0, 17, scales.shape, dtype=torch.uint8, generator=random(3)) if with_zeros else None
    return x, codes, scales, zeros


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("inputs", [1, 5, 16, 33, 200])
def test_rows_are_quantized_by_the_formula(cpu_pools, inputs, dtype):
    x = torch.randn(9, inputs, generator=random(0)).to(dtype)
    x[3] = 0
    x[4] *= 1e-30
    rows = quantize_rows(cpu_pools[1], x)
    peak = x.float().abs().amax(1)
    expected = (x.float() * torch.where(peak > 0, torch.tensor(127.0) / peak, 0).unsqueeze(1)).round()
    assert torch.equal(rows.codes[:, :inputs].float(), expected)
    assert (rows.codes[:, inputs : -(-inputs // 4) * 4] == 0).all()
    assert torch.equal(rows.scales[:, 0], peak / 127)
    assert torch.equal(rows.sums[:, 0], expected.sum(1).int())


@pytest.mark.parametrize("shape", INT8_SHAPES)
def test_an_int8_product_is_exact_until_it_is_scaled(cpu_pools, shape):
    x, codes, scales = int8_operands(*shape)
    rows = quantize_rows(cpu_pools[0], x)
    bias = torch.randn(shape[1], generator=random(3))
    y = gemm(cpu_pools[0], rows, pack_int8(codes, scales), bias, out_dtype=torch.float32)
    sums = rows.codes[:, : shape[2]].double() @ codes.double().T
    expected = sums.float() * (rows.scales * scales) + bias
    assert torch.equal(y, expected)


def test_int8_sums_never_saturate(cpu_pools):
    """The largest codes of both signs in every place of a word: 16-bit intermediate sums would overflow."""
    for weight in (-128, 127):
        for sign in (1.0, -1.0):
            x, codes = torch.full((2, 4096), sign), torch.full((70, 4096), weight, dtype=torch.int8)
            y = gemm(cpu_pools[0], x, pack_int8(codes, torch.ones(70)))
            assert torch.equal(y, torch.full((2, 70), 4096 * 127.0 * sign * weight) * torch.tensor(1 / 127.0))


def test_an_int8_row_with_a_nan_is_nan_and_its_neighbours_are_not(cpu_pools):
    x, codes, scales = int8_operands(5, 70, 64)
    x[2, 17] = float("nan")
    y = gemm(cpu_pools[0], x, pack_int8(codes, scales))
    assert y[2].isnan().all()
    assert y[[0, 1, 3, 4]].isfinite().all()


def test_an_int8_row_with_an_infinity_is_nan_which_no_relu_hides(cpu_pools):
    x, codes, scales = int8_operands(4, 70, 64)
    x[1, 17], x[2, 3] = float("inf"), float("-inf")
    y = gemm(cpu_pools[0], x, pack_int8(codes, scales))
    assert y[[1, 2]].isnan().all()
    assert y[[0, 3]].isfinite().all()


def test_rows_whose_scale_is_below_the_normal_numbers_have_codes_of_zero(cpu_pools):
    x, codes, scales = int8_operands(3, 70, 64, torch.float32)
    x *= torch.tensor([[1e-37], [3e-38], [1e-35]])
    rows = quantize_rows(cpu_pools[0], x)
    assert not rows.codes[:2].any()
    assert not rows.sums[:2].any()
    assert rows.codes[2].abs().max() == 127
    y = gemm(cpu_pools[0], rows, pack_int8(codes, scales))
    assert torch.equal(y[:2].view(torch.int32), torch.zeros(2, 70, dtype=torch.int32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("shape", INT4_SHAPES)
def test_an_int4_product_is_as_accurate_as_float32_sums_allow(cpu_pools, shape, with_zeros, dtype):
    _, outputs, inputs, group_size = shape
    x, codes, scales, zeros = int4_operands(*shape, with_zeros, dtype)
    bias = torch.randn(outputs, generator=random(4))
    y = gemm(cpu_pools[0], x, pack_int4(codes, scales, zeros), bias, out_dtype=torch.float32)
    middle = 8.0 if zeros is None else zeros.double().repeat_interleave(group_size, 1)
    wide = scales.double().repeat_interleave(group_size, 1)
    exact = x.double() @ ((codes.double() - middle) * wide).T + bias.double()
    magnitude = x.double().abs() @ ((codes.double() + middle) * wide.abs()).T + bias.double().abs()
    assert ((y.double() - exact).abs() <= (inputs + 6) * HALF * magnitude).all()


def test_an_int4_weight_with_permuted_inputs_takes_them_in_its_order(cpu_pools):
    x, codes, scales, zeros = int4_operands(7, 70, 64, 32, with_zeros=True)
    order = torch.randperm(64, generator=random(5))
    y = gemm(cpu_pools[0], x, pack_int4(codes, scales, zeros, order))
    assert torch.equal(y, gemm(cpu_pools[0], x[:, order].contiguous(), pack_int4(codes, scales, zeros)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_int4_scales_of_half_precision_keep_every_bit(cpu_pools, dtype):
    scales = torch.logspace(-6, 0, 64).to(dtype).float().unsqueeze(1)
    codes = torch.full((64, 8), 9, dtype=torch.uint8)  # one step above zero
    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    x[0, 3] = 1.0
    y = gemm(cpu_pools[0], x, pack_int4(codes, scales), out_dtype=torch.float32)
    assert torch.equal(y[0], scales[:, 0])


def test_int4_group_sizes_that_are_no_multiple_of_eight_are_refused():
    with pytest.raises(ValueError, match="multiple of 8"):
        pack_int4(torch.zeros(64, 36, dtype=torch.uint8), torch.ones(64, 3))


def packed_forms(dtype):
    x, codes, scales = int8_operands(70, 200, 160, dtype)
    grouped = int4_operands(70, 200, 160, 32, with_zeros=True)[1:]
    return x, [pack_int8(codes, scales), pack_int4(*grouped), pack_int4(*grouped[:2])]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_quantized_row_has_the_same_bits_among_any_rows_and_on_any_number_of_threads(cpu_pools, dtype):
    x, forms = packed_forms(dtype)
    for packed in forms:
        whole = gemm(cpu_pools[0], x, packed, out_dtype=torch.float32)
        for count in [*range(1, 26), 48, 69, 70]:
            start = (count * 7) % (70 - count + 1)
            for pool in cpu_pools:
                part = gemm(pool, x[start : start + count], packed, out_dtype=torch.float32)
                assert torch.equal(part, whole[start : start + count]), (packed.format, count, pool.num_threads)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rows_that_pass_a_group_in_several_slabs_keep_their_bits(cpu_pools, dtype):
    x, codes, scales, zeros = int4_operands(270, 70, 128, 64, with_zeros=True, dtype=dtype)
    packed = pack_int4(codes, scales, zeros)
    whole = gemm(cpu_pools[0], x, packed, out_dtype=torch.float32)
    assert torch.equal(gemm(cpu_pools[1], x, packed, out_dtype=torch.float32), whole)
    for row in (0, 1, 119, 120, 133, 256, 269):
        assert torch.equal(gemm(cpu_pools[0], x[row : row + 1], packed, out_dtype=torch.float32)[0], whole[row])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_quantized_products_add_bias_and_residual_and_round_once(cpu_pools, dtype):
    x, forms = packed_forms(dtype)
    bias, residual = torch.randn(200, generator=random(6)), torch.randn(70, 200, generator=random(7)).to(dtype)
    for packed in forms:
        plain = gemm(cpu_pools[0], x, packed, out_dtype=torch.float32)
        y = gemm(cpu_pools[1], x, packed, bias, residual)
        assert torch.equal(y, (plain + bias + residual.float()).to(dtype))


def test_rows_quantized_once_serve_several_weights(cpu_pools):
    x, codes, scales = int8_operands(5, 70, 64)
    packed, rows = pack_int8(codes, scales), quantize_rows(cpu_pools[0], x)
    assert isinstance(rows, QuantizedRows)
    assert torch.equal(gemm(cpu_pools[0], rows, packed), gemm(cpu_pools[0], x, packed))


@pytest.mark.parametrize("inputs", [1, 7, 64, 130])
def test_rows_of_a_packed_table_equal_the_packed_ones(cpu_pools, inputs):
    weight = torch.randn(131, inputs, generator=random(0))
    codes = torch.randint(-128, 128, (131, inputs), dtype=torch.int8, generator=random(1))
    scales = torch.rand(131, generator=random(2)) + 0.01
    ids = torch.tensor([130, 0, 63, 64, 64, -1, 131, 1 << 40, 7])
    inside = (ids >= 0) & (ids < 131)
    for packed, table in (
        (pack(weight.bfloat16()), weight.bfloat16().float()),
        (pack(weight.half()), weight.half().float()),
        (pack(weight), weight),
        (pack_int8(codes, scales), codes.float() * scales.unsqueeze(1)),
    ):
        expected = torch.where(inside.unsqueeze(1), table[ids.where(inside, 0)], 0.0)
        for pool in cpu_pools:
            assert torch.equal(embed_rows(pool, ids, packed, torch.float32), expected)
            assert torch.equal(embed_rows(pool, ids, packed, torch.float32, multiplier=3.5), expected * 3.5)
            for dtype in HALVES:
                assert torch.equal(embed_rows(pool, ids, packed, dtype), expected.to(dtype))


def test_a_row_past_the_tables_end_is_zeros_whatever_lies_there(cpu_pools):
    weight = 1 + torch.rand(131, 20, generator=random(0))
    for packed in (
        pack(weight.bfloat16()),
        pack(weight.half()),
        pack(weight),
        pack_int8(weight.char(), torch.ones(131)),
    ):
        found = embed_rows(cpu_pools[0], torch.tensor([63, 64]), replace(packed, outputs=64), torch.float32)
        assert found[0].all()
        assert not found[1].any()
