"""Packing and quantization on the pool have the bytes of plain torch, for every instruction set and thread count."""

import pytest
import torch

from paged_serve.workers.checkpoint.conversion import NotFiniteError
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight, StoredWeight
from paged_serve.workers.kernels.cpu.loading import int4_from_floats, int8_from_floats, packed
from paged_serve.workers.kernels.cpu.packing import pack
from paged_serve.workers.quantization.on_load import int4_weight, int8_codes, int8_scales, squared_error

SHAPES = [(1, 1), (3, 5), (64, 128), (70, 130), (200, 257), (129, 1032)]
FLOATS = [torch.bfloat16, torch.float16, torch.float32]


def matrix(outputs, inputs, dtype=torch.float32, seed=0):
    """A matrix with all magnitudes that the dtypes have in common, zeros of both signs, and an output of zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(outputs, inputs, generator=generator)
    values *= 10.0 ** torch.randint(-4, 3, (outputs, inputs), generator=generator)
    values[outputs // 2] = 0.0
    values[0, 0] = -0.0
    return values.to(dtype)


def assert_same(found, expected):
    assert (found.format, found.outputs, found.inputs) == (expected.format, expected.outputs, expected.inputs)
    assert (found.group_size, found.has_zeros) == (expected.group_size, expected.has_zeros)
    assert found.data.dtype == expected.data.dtype
    assert torch.equal(found.data, expected.data)
    assert (found.scales is None) == (expected.scales is None)
    assert found.scales is None or torch.equal(found.scales, expected.scales)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_panels_match_torch(cpu_pools, shape, source, target):
    weight = matrix(*shape, source)
    for pool in cpu_pools:
        assert_same(packed(pool, StoredWeight((weight,), target)), pack(weight.to(target)))


def test_float64_is_taken_through_float32(cpu_pools):
    weight = matrix(70, 33, torch.float64)
    assert_same(packed(cpu_pools[0], StoredWeight((weight,), torch.bfloat16)), pack(weight.bfloat16()))


def test_rounding_is_that_of_torch_at_every_float16_and_at_halves_between_bfloat16(cpu_pools):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[every.isfinite()]
    between = (torch.arange(1 << 16, dtype=torch.int64) << 15).to(torch.int32).view(torch.float32)
    for values in (every.view(-1, 2048 // 32), between[between.isfinite()].view(-1, 128)):
        for target in (torch.bfloat16, torch.float32):
            stored = StoredWeight((values,), target)
            assert_same(packed(cpu_pools[0], stored), pack(values.to(target)))


def test_parts_are_stacked_for_any_strides_and_addresses(cpu_pools):
    whole = matrix(150, 96)
    odd = torch.frombuffer(bytearray(range(1, 194)), dtype=torch.bfloat16, offset=1).view(2, 48)
    assert odd.data_ptr() % 2 == 1
    parts = whole[:70, 48:], whole[70:71, :48].half(), whole[71:, ::2], odd
    expected = torch.cat([part.bfloat16() for part in parts])
    for pool in cpu_pools:
        assert_same(packed(pool, StoredWeight(parts, torch.bfloat16)), pack(expected))


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_panels_match_torch(cpu_pools, shape):
    codes = torch.randint(-128, 128, shape, dtype=torch.int8)
    weight = Int8Weight(codes, torch.rand(shape[0]))
    for pool in cpu_pools:
        assert_same(packed(pool, weight), pack(weight))


@pytest.mark.parametrize(
    ("outputs", "groups", "size"), [(1, 1, 8), (64, 2, 32), (70, 3, 24), (130, 5, 128), (65, 2, 520)]
)
@pytest.mark.parametrize("has_zeros", [False, True])
def test_int4_panels_match_torch(cpu_pools, outputs, groups, size, has_zeros):
    codes = torch.randint(0, 16, (outputs, 2 * groups * size), dtype=torch.uint8)[:, : groups * size]
    scales = torch.randn(outputs, groups).bfloat16().float()
    zeros = torch.randint(0, 16, (outputs, groups), dtype=torch.uint8) if has_zeros else None
    whole = GroupedWeight(codes.contiguous(), scales, zeros, bits=4)
    for pool in cpu_pools:
        assert_same(packed(pool, GroupedWeight(codes, scales, zeros, bits=4)), pack(whole))


def test_panels_of_scales_in_units_match_torch_and_keep_their_bits(cpu_pools):
    codes = torch.randint(0, 16, (70, 96), dtype=torch.uint8)
    e4m3 = torch.arange(420).view(70, 6).remainder(127).byte().view(torch.float8_e4m3fn).float()  # every number
    units = torch.rand(70) * 10.0 ** torch.arange(-35, 35)
    units[5] = 0.0
    weight = GroupedWeight(codes, e4m3 * units.unsqueeze(1), None, 4, is_e2m1=True, units=units)
    for pool in cpu_pools:
        found = packed(pool, weight)
        assert_same(found, pack(weight))
        stored = found.data[..., :128].view(torch.float16)  # [panels, groups, 64]
        kept = stored.movedim(1, 2).flatten(0, 1)[:70].float()
        assert torch.equal(kept[units > 0], e4m3[units > 0])
        assert not kept[5].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_codes_match_torch(cpu_pools, shape, dtype):
    weight = matrix(*shape, dtype)
    scales = int8_scales(weight)
    columns = slice(shape[1] // 3, shape[1])
    codes = int8_codes(weight, scales)[:, columns]
    lost, there = squared_error(weight[:, columns], codes, lambda part, at: part.float() * scales[at].unsqueeze(1))
    for pool in cpu_pools:
        found, error = int8_from_floats(pool, weight, columns)
        assert torch.equal(found.scales, scales)
        assert torch.equal(found.codes, codes)
        assert error == pytest.approx((lost, there), rel=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("spread", ["normal", "wild"])
def test_int4_codes_match_torch(cpu_pools, size, dtype, spread):
    weight = matrix(67, 5 * size, dtype) if spread == "wild" else torch.randn(67, 5 * size).to(dtype)
    expected = int4_weight(weight, size)
    values = lambda codes, at: GroupedWeight(codes, expected.scales[at], None, 4).dequantized()  # noqa: E731
    lost_there = squared_error(weight, expected.codes, values)
    for pool in cpu_pools:
        found, error = int4_from_floats(pool, weight, size)
        assert torch.equal(found.scales, expected.scales)
        assert torch.equal(found.codes, expected.codes)
        assert error == pytest.approx(lost_there, rel=1e-4)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3.4e38])
def test_a_single_non_finite_number_is_detected_anywhere(cpu_pools, value, source, target):
    """The number is not finite when stored or when rounded; the largest finite numbers are accepted."""
    inputs = 131
    for outputs, place in ((1, 0), (70, 69 * inputs + 130), (70, 64 * inputs + 127), (200, 99)):
        weight = torch.full((outputs, inputs), torch.finfo(target).max).to(source)
        if not weight.to(target).isfinite().all():  # rounded up
            weight = torch.ones(outputs, inputs, dtype=source)
        weight.view(-1)[place] = value
        spoiled = not bool(weight.to(target).isfinite().all())
        whole = weight.clone()
        whole.view(-1)[place] = 0.0
        for pool in cpu_pools:
            packed(pool, StoredWeight((whole,), target), must_be_finite=True)
            if spoiled:
                with pytest.raises(NotFiniteError):
                    packed(pool, StoredWeight((weight,), target), must_be_finite=True)
            else:
                packed(pool, StoredWeight((weight,), target), must_be_finite=True)
