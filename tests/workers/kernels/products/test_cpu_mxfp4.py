"""Products with weights in MXFP4 and NVFP4: the bits of int4 where int4 has the values, and exact sums of integers."""

import pytest
import torch

from paged_serve.workers.checkpoint.blocks.dequantize import E2M1_TWICE
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.packing import pack


def random(seed):
    return torch.Generator().manual_seed(seed)


def grouped(outputs, inputs, codes):
    """A weight with these codes, and scales that are powers of two."""
    exponents = torch.randint(-9, 2, (outputs, inputs // 32), generator=random(1))
    return GroupedWeight(codes.byte(), torch.ldexp(torch.ones(exponents.shape), exponents), None, 4, is_e2m1=True)


@pytest.mark.parametrize("segments", [1, 2])
def test_a_product_has_the_bits_of_int4_where_int4_has_the_values(segments, pools_of_each_order):
    codes = torch.randint(0, 12, (70, 256), generator=random(0))
    codes += 2 * (codes > 5)  # without 4 and 6, which are 8 and 12 when doubled
    weight = grouped(70, 256, codes)
    shifted = (torch.tensor(E2M1_TWICE)[codes] + 8).byte()
    plain = GroupedWeight(shifted, weight.scales, None, 4)
    assert torch.equal(weight.dequantized(), plain.dequantized())
    for rows in (1, 2, 5, 40, 150):
        x = torch.randn(rows, 256, generator=random(rows)).bfloat16()
        for pool in pools_of_each_order:
            expected, found = (gemm(pool, x, pack(each), segments=segments) for each in (plain, weight))
            assert torch.equal(found, expected), rows


def test_every_code_has_its_value(pools_of_each_order):
    """Of integers, sums are exact in any order."""
    weight = grouped(130, 96, torch.randint(0, 16, (130, 96), generator=random(0)))
    x = torch.randint(-7, 8, (37, 96), generator=random(2))
    exact = x.double() @ weight.dequantized().double().t()
    for pool in pools_of_each_order:
        for rows in (1, 37):
            found = gemm(pool, x[:rows].bfloat16(), pack(weight), out_dtype=torch.float32)
            assert torch.equal(found.double(), exact[:rows])


def test_each_output_has_its_unit(pools_of_each_order):
    """A sum is multiplied by the unit once, so units of powers of two are exact, and others are rounded once."""
    codes, scales = torch.randint(0, 16, (130, 96), generator=random(0)), torch.randint(1, 9, (130, 6)).float()
    x = torch.randint(-7, 8, (37, 96), generator=random(2)).bfloat16()
    units = torch.rand(130, generator=random(3)) * 10.0 ** torch.arange(-30, 22).repeat(3)[:130]
    plain = GroupedWeight(codes.byte(), scales, None, 4, is_e2m1=True, units=torch.ones(130))
    weight = GroupedWeight(codes.byte(), scales * units[:, None], None, 4, is_e2m1=True, units=units)
    exact = x.double() @ plain.dequantized().double().t()
    for pool in pools_of_each_order:
        for rows in (1, 2, 37):
            found = gemm(pool, x[:rows], pack(weight), out_dtype=torch.float32)
            assert torch.equal(found, exact[:rows].float() * units)
