"""Products whose inputs are summed in segments equal the sum over ranks that share the segments, bit for bit."""

import pytest
import torch

from paged_serve.workers.backends.cpu.products.segments import in_segments, segments_of_rank
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight
from paged_serve.workers.kernels.cpu.gemm import gemm, sum_parts
from paged_serve.workers.kernels.cpu.packing import pack

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORMS = [
    *FLOATS,
    "int8",
    "int8 with fp16",
    "int4",
    "int4 with zeros",
    "int4 with fp16",
    "int4 with zeros and fp16",
]
SHAPES = [(1, 64, 64), (7, 100, 96), (13, 130, 2400), (120, 70, 160)]  # rows, outputs, inputs; 2400: chunks of K


@pytest.fixture(scope="module")
def cpu_pools(pools_of_each_order):
    return pools_of_each_order


def random(seed):
    return torch.Generator().manual_seed(seed)


def weight_of(form, outputs, inputs):
    if form in FLOATS:
        return torch.randn(outputs, inputs, generator=random(1)).to(FLOATS[form])
    if form.startswith("int8"):
        codes = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, generator=random(1))
        return Int8Weight(codes, torch.rand(outputs, generator=random(2)) + 0.01)
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, generator=random(1))
    scales = (torch.randn(outputs, inputs // 8, generator=random(2)) * 0.01).bfloat16().float()
    zeros = torch.randint(0, 17, scales.shape, dtype=torch.uint8, generator=random(3)) if "zeros" in form else None
    return GroupedWeight(codes, scales, zeros, bits=4)


def part_of(weight, index, count):
    """The weight's inputs in the `index`th of `count` equal shares."""
    match weight:
        case Int8Weight():
            return Int8Weight(part_of(weight.codes, index, count), weight.scales)
        case GroupedWeight():
            zeros = None if weight.zeros is None else part_of(weight.zeros, index, count)
            return GroupedWeight(
                part_of(weight.codes, index, count), part_of(weight.scales, index, count), zeros, weight.bits
            )
        case _:
            return weight.chunk(count, dim=1)[index].contiguous()


def operands(form, rows, outputs, inputs):
    x = torch.randn(rows, inputs, generator=random(0)) * torch.logspace(-2, 2, inputs)
    return x.to(FLOATS.get(form.split()[-1], torch.bfloat16)), weight_of(form, outputs, inputs)


def added(parts):
    """The sum of the parts: adjacent parts are added first, then adjacent sums."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return added(parts[:half]) + added(parts[half:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_segments_are_separate_products_added_in_a_tree(cpu_pools, shape, form):
    x, weight = operands(form, *shape)
    pool, packed = cpu_pools[0], pack(weight)
    for segments in (2, 4):
        parts = [
            gemm(pool, part_of(x, index, segments), pack(part_of(weight, index, segments)), out_dtype=torch.float32)
            for index in range(segments)
        ]
        y = gemm(pool, x, packed, out_dtype=torch.float32, segments=segments)
        assert torch.equal(y, added(parts))


@pytest.mark.parametrize("form", FORMS)
def test_shares_of_any_number_of_ranks_add_up_to_the_whole(cpu_pools, form):
    x, weight = operands(form, 13, 130, 2400)
    bias = torch.randn(130, generator=random(4))
    pool = cpu_pools[1]
    whole = gemm(pool, x, pack(weight), bias, segments=4)
    for ranks in (1, 2, 4):
        parts = [
            gemm(
                pool,
                part_of(x, rank, ranks),
                pack(part_of(weight, rank, ranks)),
                out_dtype=torch.float32,
                segments=4 // ranks,
            )
            for rank in range(ranks)
        ]
        assert torch.equal(sum_parts(pool, torch.stack(parts), bias, torch.empty_like(whole)), whole)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_among_any_rows_and_on_any_number_of_threads(cpu_pools, form):
    x, weight = operands(form, 120, 200, 160)
    packed = pack(weight)
    whole = gemm(cpu_pools[0], x, packed, out_dtype=torch.float32, segments=4)
    for count in [*range(1, 26), 48, 49, 97, 120]:
        start = (count * 7) % (120 - count + 1)
        for pool in cpu_pools:
            part = gemm(pool, x[start : start + count], packed, out_dtype=torch.float32, segments=4)
            assert torch.equal(part, whole[start : start + count]), (count, pool.num_threads)


@pytest.mark.parametrize("form", FLOATS)
def test_bias_and_residual_are_added_to_the_sum_of_segments_before_the_one_rounding(cpu_pools, form):
    x, weight = operands(form, 60, 70, 160)
    bias, residual = torch.randn(70, generator=random(5)), torch.randn(60, 70, generator=random(6)).to(x.dtype)
    plain = gemm(cpu_pools[0], x, pack(weight), out_dtype=torch.float32, segments=4)
    y = gemm(cpu_pools[1], x, pack(weight), bias, residual, segments=4)
    assert torch.equal(y, (plain + bias + residual.float()).to(x.dtype))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_adjacent_parts_are_added_first_and_the_sum_is_rounded_once(cpu_pools, count):
    parts = (
        torch.randn(count, 9, 70, generator=random(0)) * torch.tensor([1e-3, 1.0, 1e3, 30.0] * 2)[:count, None, None]
    )
    bias = torch.randn(70, generator=random(1))
    expected = added(list(parts))
    for pool in cpu_pools:
        for dtype in FLOATS.values():
            out = torch.empty(9, 70, dtype=dtype)
            assert torch.equal(sum_parts(pool, parts, bias, out), (expected + bias).to(dtype))
            assert torch.equal(sum_parts(pool, parts, None, out), expected.to(dtype))


@pytest.mark.parametrize(
    ("inputs", "form", "segments"),
    [
        (64, "bf16", 4),
        (24, "int8", 2),
        (6, "fp32", 1),
        (20, "bf16", 1),
        (96, "int4", 4),
        (48, "int4", 2),
        (24, "int4", 1),
    ],
)
def test_the_number_of_segments_depends_only_on_the_model(inputs, form, segments):
    whole = weight_of(form, 3, inputs)
    for ranks in (1, 2, 4):
        if segments % ranks == 0:
            assert segments_of_rank(part_of(whole, 0, ranks), ranks) == segments // ranks


def test_ranks_that_do_not_divide_the_segments_have_one_each():
    assert segments_of_rank(weight_of("bf16", 3, 32), 3) == 1
    assert segments_of_rank(weight_of("bf16", 3, 8), 8) == 1


@pytest.mark.parametrize("with_zeros", [False, True])
def test_one_group_for_all_inputs_is_cut_where_the_segments_end(with_zeros):
    scales = torch.rand(3, 1, generator=random(0))
    zeros = torch.tensor([[3], [8], [15]], dtype=torch.uint8) if with_zeros else None
    weight = GroupedWeight(torch.randint(0, 16, (3, 64), dtype=torch.uint8, generator=random(1)), scales, zeros, bits=4)
    cut = in_segments(weight, segments_of_rank(weight, 1))
    assert cut.group_size == 16
    assert torch.equal(cut.dequantized(), weight.dequantized())


def test_groups_that_cannot_be_divided_leave_one_segment():
    weight = GroupedWeight(torch.zeros(3, 96, dtype=torch.uint8), torch.ones(3, 3), None, bits=4)
    assert segments_of_rank(weight, 1) == 1
    ordered = GroupedWeight(torch.zeros(3, 64, dtype=torch.uint8), torch.ones(3, 8), None, 4, torch.arange(64))
    assert segments_of_rank(ordered, 1) == 1
