"""Packed matrix products of every built instruction set: close to the float64 product, and independent for each row."""

import platform
import shutil

import pytest
import torch
from check_spills import excessive, spills

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu import parameters
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.packing import pack
from paged_serve.workers.kernels.cpu.structs.kernels import KERNELS

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [  # rows, outputs, inputs: whole panels, then all kinds of edges
    *[(1, 64, 64), (6, 128, 256), (64, 192, 512)],
    *[(1, 1, 1), (2, 3, 2), (3, 63, 7), (5, 65, 129), (7, 100, 33), (13, 130, 95), (19, 17, 1), (66, 257, 31)],
]


def operands(rows, outputs, inputs, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    return x, weight


def assert_near(y, x, weight, extra=0.0):
    """Assert an error within that of `inputs` float32 additions of products and one rounding to y's dtype."""
    exact = x.double() @ weight.double().T + extra
    magnitude = x.double().abs() @ weight.double().abs().T + abs(extra)
    stored = torch.finfo(y.dtype)
    allowed = (x.shape[1] + 2) * 2.0**-24 * magnitude + stored.eps / 2 * exact.abs().clamp(min=stored.smallest_normal)
    assert ((y.double() - exact).abs() <= allowed * 1.01).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_as_accurate_as_float32_sums_allow(cpu_pools, shape, dtype):
    x, weight = operands(*shape, dtype)
    packed = pack(weight)
    for out_dtype in {dtype, torch.float32}:
        y = gemm(cpu_pools[0], x, packed, out_dtype=out_dtype)
        assert y.dtype == out_dtype
        assert_near(y, x, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_among_any_rows_and_on_any_number_of_threads(cpu_pools, dtype):
    rows = 70
    for outputs, inputs in ((200, 130), (64, 257)):
        x, weight = operands(rows, outputs, inputs, dtype)
        packed = pack(weight)
        whole = gemm(cpu_pools[0], x, packed, out_dtype=torch.float32)
        for count in [*range(1, 26), 48, 69, 70]:
            start = (count * 7) % (rows - count + 1)
            for pool in cpu_pools:
                part = gemm(pool, x[start : start + count], packed, out_dtype=torch.float32)
                assert torch.equal(part, whole[start : start + count]), (count, pool.num_threads)


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_rows_too_long_to_be_widened_at_once_keep_their_bits(cpu_pools, dtype):
    """The rows take more than 32 MB as floats."""
    x, weight = operands(66, 3, 130_000, dtype)
    packed, residual = pack(weight), torch.randn(66, 3).to(dtype)
    whole = gemm(cpu_pools[1], x, packed, residual=residual)
    for row in (0, 32, 33, 65):
        assert torch.equal(
            gemm(cpu_pools[0], x[row : row + 1], packed, residual=residual[row : row + 1])[0], whole[row]
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_residual_are_added_before_the_one_rounding(cpu_pools, dtype):
    for outputs in (65, 70, 79):  # past the whole panel one, several, and all but one of a vector's lanes
        x, weight = operands(9, outputs, 40, dtype)
        bias = torch.randn(outputs, generator=torch.Generator().manual_seed(1))
        residual = torch.randn(9, outputs, generator=torch.Generator().manual_seed(2)).to(dtype)
        packed = pack(weight)
        y = gemm(cpu_pools[1], x, packed, bias, residual)
        assert_near(y, x, weight, extra=bias.double() + residual.double())
        gemm(cpu_pools[1], x, packed, bias, residual, out=residual)
        assert torch.equal(residual, y)


def test_strided_rows_are_read_and_written_in_place_and_nothing_else_changes(cpu_pools):
    x, weight = operands(7, 30, 21, torch.bfloat16)
    wide_x = torch.full((7, 40), float("nan"), dtype=torch.bfloat16)
    wide_x[:, 5:26] = x
    wide_y = torch.full((7, 50), 3.0, dtype=torch.bfloat16)
    packed = pack(weight)
    y = gemm(cpu_pools[0], wide_x[:, 5:26], packed, out=wide_y[:, 10:40])
    assert torch.equal(y, gemm(cpu_pools[0], x, packed))
    assert (wide_y[:, :10] == 3.0).all()
    assert (wide_y[:, 40:] == 3.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_and_nan_stay_in_their_row_and_column(cpu_pools, dtype):
    x, weight = operands(8, 130, 66, dtype)
    x[2, 65], x[5, 0], weight[129, 3] = float("nan"), float("inf"), float("nan")
    y = gemm(cpu_pools[0], x, pack(weight))
    assert y[2].isnan().all()
    assert y[:, 129].isnan().all()
    assert y[5, :129].isinf().all()
    rest = torch.tensor([row not in (2, 5) for row in range(8)])
    assert y[rest, :129].isfinite().all()


def test_rows_of_another_dtype_are_refused(cpu_pools):
    x, weight = operands(2, 64, 64, torch.bfloat16)
    with pytest.raises(TypeError, match=r"need .*bfloat16 rows, not"):
        gemm(cpu_pools[0], x.float(), pack(weight))
    with pytest.raises(TypeError, match="no packed form"):
        pack(weight.double())


def test_an_unknown_instruction_set_is_refused_with_the_available_ones(cpu_library):
    with pytest.raises(ConfigError, match=cpu_library.isa):
        cpu.best_library("avx1024")


def test_the_machine_runs_the_best_library_by_default(cpu_library):
    best, first = cpu.best_library(), cpu.runnable_isas()[0]
    assert best is not None
    assert best.isa == first or {best.isa, first} == set(cpu.SAME_VECTORS)
    assert cpu.ISAS.index(first) <= cpu.ISAS.index(cpu_library.isa)


def test_the_faster_of_two_libraries_is_chosen(cpu_library):
    """The choice is by measurement and independent of the order: AVX2 against a library without fused products."""
    if cpu_library.isa != "avx2":
        pytest.skip("once is enough")
    portable = cpu.load_library("portable")
    assert cpu.faster(cpu_library, portable) is cpu.faster(portable, cpu_library) is cpu_library


def test_a_library_whose_dot_product_adds_in_another_order_is_not_run(monkeypatch):
    isas = cpu.runnable_isas()
    monkeypatch.setattr(cpu.Library, "dot_is_fma", lambda library: library.isa != isas[0])
    cpu.runnable_isas.cache_clear()
    try:
        assert cpu.runnable_isas() == isas[1:]
    finally:
        cpu.runnable_isas.cache_clear()


def test_a_library_with_other_structs_is_refused(cpu_library, monkeypatch):
    class GemmParams(parameters.GemmParams):
        _fields_ = (("forgotten", parameters.c_int64),)

    monkeypatch.setitem(KERNELS, "gemm_bf16", GemmParams)
    with pytest.raises(ConfigError, match="build_ext --inplace"):
        cpu.Library(cpu_library.path)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
def test_no_product_keeps_its_accumulators_on_the_stack(cpu_library):
    if cpu_library.isa == "portable" and platform.machine() == "x86_64":
        pytest.skip("its products have no instruction to look for")
    assert excessive(spills(cpu_library.path)) == []
