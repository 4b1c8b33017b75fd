"""The kernels of every instruction set against the definition of their arithmetic (dot_order.py), bit for bit.

A machine whose dot instruction adds in another order fails here, without a comparison with another machine.
"""

import fractions
import math

import numpy as np
import pytest
import torch

from paged_serve.workers.checkpoint.weight_forms import GroupedWeight
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.packing import pack
from paged_serve.workers.kernels.cpu.sampling import token_logprobs

from ..elementwise_calls import rms_norm
from ..portable_numbers import KINDS, assert_same_bits, integers, normals, numbers
from . import dot_order

FLOATS = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 70, 64), (5, 66, 33), (9, 130, 200), (3, 20, 1)], ids=str)
def test_products_add_in_the_order_of_the_definition(cpu_pools, shape, dtype, kind):
    rows, outputs, inputs = shape
    x, weight = (numbers(kind, (n, inputs), i).to(dtype) for i, n in enumerate((rows, outputs)))
    for segments in (1, 4) if inputs % 32 == 0 else (1,):
        is_paired = dtype.itemsize == 2
        exact = dot_order.product(x.float().numpy(), weight.float().numpy(), is_paired, segments)
        for pool in cpu_pools:
            found = gemm(pool, x, pack(weight), out_dtype=torch.float32, segments=segments)
            assert_same_bits(found, torch.from_numpy(exact))
            stored = dot_order.bf16(exact) if dtype == torch.bfloat16 else torch.from_numpy(exact).to(dtype)
            assert_same_bits(gemm(pool, x, pack(weight), segments=segments), stored)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize(("group_size", "rows"), [(8, 5), (24, 3), (24, 14), (64, 5), (264, 7)])
def test_int4_products_and_group_sums_add_in_the_order_of_the_definition(
    cpu_pools, group_size, rows, with_zeros, dtype
):

    codes = integers(0, 16, (70, 8 * group_size), 1).to(torch.uint8)
    scales = (normals((70, 8), 2) * 0.01).bfloat16().float()
    zeros = integers(0, 17, (70, 8), 3).to(torch.uint8) if with_zeros else None
    x = numbers("plain", (rows, 8 * group_size), 4).to(dtype)
    packed = pack(GroupedWeight(codes, scales, zeros, bits=4))
    exact = dot_order.int4_product(
        x.float().numpy(), codes.float().numpy(), None if zeros is None else zeros.float().numpy(), scales.numpy(), 4
    )
    for pool in cpu_pools:
        assert_same_bits(gemm(pool, x, packed, out_dtype=torch.float32, segments=4), torch.from_numpy(exact))


@pytest.mark.parametrize("kind", ["plain", "tiny", "wide"])
@pytest.mark.parametrize("size", [1, 8, 15, 16, 31, 64, 100, 129, 500])
def test_sums_of_squares_have_sixteen_lanes(cpu_pools, size, kind):
    hidden, weight = numbers(kind, (4, size), size), normals((size,), 1)
    exact = dot_order.norm(hidden.numpy(), weight.numpy(), 1e-6)
    for pool in cpu_pools:
        assert_same_bits(rms_norm(pool, hidden, weight, 1e-6), torch.from_numpy(exact))
        assert_same_bits(
            rms_norm(pool, hidden.bfloat16(), weight, 1e-6),
            dot_order.bf16(dot_order.norm(dot_order.flushed(hidden.bfloat16().float().numpy()), weight.numpy(), 1e-6)),
        )


def test_denormals_are_zeros_in_kernels_and_nowhere_else(cpu_pools):
    """The processor mode of the calling thread that makes them zeros is restored when a kernel returns."""
    tiny, weight = torch.full((40, 64), 2.0**-140), pack(torch.full((70, 64), 1e20))
    for pool in cpu_pools:
        for rows in (1, 40):  # computed by the caller alone, or by all threads
            assert (gemm(pool, tiny[:rows], weight) == 0).all()
            assert ((tiny * 2.0) == 2.0**-139).all()
            assert (tiny.numpy() * np.float32(2) == np.float32(2.0**-139)).all()


def test_a_library_verifies_the_order_of_its_dot_products(cpu_library):
    assert cpu_library.dot_is_fma()


def test_the_definition_itself_rounds_once():
    """Results are compared with exact fractions."""
    a, b, c = (numbers("wide", (3000,), seed).numpy() for seed in range(3))
    c[:1000] = -dot_order.times(a[:1000], b[:1000])  # the results are the rounding errors of the products
    near = np.float32(1) + np.arange(1000, dtype=np.float32) * np.float32(2.0**-23)
    a[1000:2000], b[1000:2000], c[1000:2000] = near, near[::-1], np.float32(2.0**-60)  # close to ties
    for one, two, three, found in zip(*map(dot_order.flushed, (a, b, c)), dot_order.fma(a, b, c), strict=True):
        exact = fractions.Fraction(float(one)) * fractions.Fraction(float(two)) + fractions.Fraction(float(three))
        if abs(exact) < fractions.Fraction(2) ** -126:
            assert abs(found) in (0, dot_order.SMALLEST)
        elif np.isfinite(found):
            error = abs(fractions.Fraction(float(found)) - exact)
            towards = np.nextafter(found, np.float32(np.inf if exact > fractions.Fraction(float(found)) else -np.inf))
            other = abs(fractions.Fraction(float(towards)) - exact)
            assert error < other or (error == other and found.view(np.int32) % 2 == 0)


def test_a_logarithm_is_as_accurate_as_a_double_allows(cpu_pools):
    """The arguments are sums of weights, from 1 to a vocabulary's size: n equal logits have log-probability -log(n)."""
    for count in (1, 2, 3, 5, 7, 10, 100, 1000, 4099):
        logits = np.zeros((1, count), np.float32)
        zero = np.zeros(1, np.int64)
        for pool in cpu_pools:
            _, found, _ = token_logprobs(pool, logits, zero, zero, zero)
            assert found[0, 0] == np.float32(-math.log(count))
