"""Sums in tile order equal their definition bit for bit, on every instruction set and in any batch."""

import pytest
import torch

from paged_serve.workers.checkpoint.weight_forms import Int8Weight
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.gemm import gemm, quantize_rows
from paged_serve.workers.kernels.cpu.packing import pack, pack_int4
from paged_serve.workers.kernels.cpu.tile_chunk import CHUNKS

from . import tile_oracle

SHAPES = [  # rows, outputs, inputs: whole pieces and blocks, then edges of every kind
    *[(1, 64, 64), (16, 64, 256), (33, 128, 96)],
    *[(1, 1, 1), (2, 3, 2), (3, 63, 7), (5, 65, 129), (17, 100, 33), (31, 30, 287), (40, 65, 544)],
]


@pytest.fixture(scope="module")
def tile_pools(cpu_library):
    """Pools of one thread and of three."""
    made = [cpu.Pool(cpu_library, [-1] * threads, summation="tile") for threads in (1, 3)]
    yield made
    for pool in made:
        pool.close()


of_each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def operands(rows, outputs, inputs, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(-3, 3, inputs, base=2.0)
    x = torch.randn(rows, inputs, generator=generator) * spread
    return x.to(dtype), torch.randn(outputs, inputs, generator=generator).to(dtype)


def any_bits(rows, inputs, seed, dtype=torch.bfloat16):
    """Numbers of any magnitude with finite products, including denormals and, of bfloat16, denormal products."""
    bits = torch.randint(
        -(2**15), 2**15, (rows, inputs), dtype=torch.int16, generator=torch.Generator().manual_seed(seed)
    )
    too_large = (bits & 0x7F80) >= 0x5F00 if dtype == torch.bfloat16 else (bits & 0x7C00) == 0x7C00
    return torch.where(too_large, bits & ~0x4000, bits).view(dtype)


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@of_each_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_matches_the_definition(tile_pools, shape, dtype):
    x, weight = operands(*shape, dtype)
    expected = tile_oracle.product(x, weight)
    for pool in tile_pools:
        assert same_bits(gemm(pool, x, pack(weight), out_dtype=torch.float32), expected)


def test_an_infinity_or_nan_of_float16_makes_its_row_nan_and_no_other(tile_pools):
    weight = pack(torch.ones(64, 40).half())
    for bits in (0x7C00, -0x400, *range(0x7C01, 0x8000)):
        x = torch.ones(2, 40).half()
        x.view(torch.int16)[0, 33] = bits
        found = gemm(tile_pools[0], x, weight, out_dtype=torch.float32)
        assert found[0].isnan().all(), hex(bits)
        assert (found[1] == 40).all()


def test_the_error_of_a_product_of_float16_is_a_small_part_of_its_rounding(tile_pools):
    x, weight = (torch.randn(64, 1024, generator=torch.Generator().manual_seed(seed)).half() for seed in (1, 2))
    exact = x.double() @ weight.double().T
    error = gemm(tile_pools[0], x, pack(weight), out_dtype=torch.float32) - exact
    assert error.square().mean().sqrt() < 2**-18 * exact.square().mean().sqrt()


@of_each_dtype
@pytest.mark.parametrize("rows", [1, 16, 290])
def test_the_bits_do_not_depend_on_the_chunk(tile_pools, cpu_library, rows, dtype):
    x, weight = operands(rows, 70, 545, dtype)  # 18 pieces
    expected = gemm(tile_pools[0], x, pack(weight), out_dtype=torch.float32)
    try:
        for pieces in (1, 3, 6, 8):
            cpu_library.set_chunk_pieces(pieces)
            for pool in tile_pools:
                assert same_bits(gemm(pool, x, pack(weight), out_dtype=torch.float32), expected)
    finally:
        cpu_library.set_chunk_pieces(CHUNKS[0])


@of_each_dtype
def test_operands_of_any_bits_match_the_definition(tile_pools, dtype):
    x, weight = any_bits(24, 200, 1, dtype), any_bits(70, 200, 2, dtype)
    small = torch.where(torch.arange(200) % 3 == 0, x.float() * 2.0**-60, x.float()).to(dtype)
    for rows in (x, small):
        assert same_bits(
            gemm(tile_pools[0], rows, pack(weight), out_dtype=torch.float32), tile_oracle.product(rows, weight)
        )


@of_each_dtype
def test_tile_order_differs_from_dot_order(cpu_library, dtype):
    x, weight = operands(4, 64, 256, dtype)
    pools = [cpu.Pool(cpu_library, [-1], summation=order) for order in ("dot", "tile")]
    assert not same_bits(*(gemm(pool, x, pack(weight), out_dtype=torch.float32) for pool in pools))
    for pool in pools:
        pool.close()


@of_each_dtype
def test_a_row_has_the_same_bits_among_any_rows_and_on_any_number_of_threads(tile_pools, dtype):
    rows = 301  # more than a slab
    for outputs, inputs in ((200, 130), (64, 545)):  # several panels, and several chunks of a panel
        x, weight = operands(rows, outputs, inputs, dtype)
        packed = pack(weight)
        whole = gemm(tile_pools[0], x, packed, out_dtype=torch.float32)
        for count in (*range(1, 18), 31, 32, 33, 48, 65, 130, 300):
            start = (count * 7) % (rows - count + 1)
            for pool in tile_pools[count == 300 :]:  # one thread has multiplied more than a slab
                part = gemm(pool, x[start : start + count], packed, out_dtype=torch.float32)
                assert same_bits(part, whole[start : start + count]), (count, pool.num_threads)


@pytest.mark.parametrize(("dtype", "inputs"), [(torch.bfloat16, 4096), (torch.float16, 2048)], ids=str)
@pytest.mark.parametrize("segments", [1, 4])
def test_rows_that_no_cache_holds_are_multiplied_set_by_set_with_the_same_bits(tile_pools, segments, dtype, inputs):
    """330 rows of 8 KB are three sets; float16 has two parts of 2 bytes."""
    x, weight = operands(330, 70, inputs, dtype)
    residual, bias = operands(330, 70, 70, dtype)[0], torch.randn(70)
    packed = pack(weight)
    few = [
        gemm(tile_pools[0], a, packed, bias, b, segments=segments)
        for a, b in zip(x.split(50), residual.split(50), strict=True)
    ]
    for pool in tile_pools:
        assert torch.equal(gemm(pool, x, packed, bias, residual, segments=segments), torch.cat(few))


def test_zero_rows_give_an_empty_product(tile_pools):
    """A step has no row for the output head if all its chunks end within their prompts."""
    int4 = pack_int4(torch.zeros(64, 32, dtype=torch.uint8), torch.ones(64, 1))
    for weight in (pack(operands(1, 64, 32)[1]), int4):
        for pool in tile_pools:
            assert gemm(pool, torch.empty(0, 32, dtype=torch.bfloat16), weight).shape == (0, 64)


@of_each_dtype
def test_strided_rows_are_read_in_place_and_nothing_else_is_read(tile_pools, dtype):
    x, weight = operands(19, 30, 21, dtype)
    wide = torch.full((19, 40), float("nan"), dtype=dtype)
    wide[:, 5:26] = x
    packed = pack(weight)
    assert torch.equal(gemm(tile_pools[0], wide[:, 5:26], packed), gemm(tile_pools[0], x, packed))


@of_each_dtype
@pytest.mark.parametrize("shape", [(1, 64, 64), (13, 130, 2400), (140, 70, 160), (33, 100, 144)])
def test_segments_are_separate_products_added_in_a_tree(tile_pools, shape, dtype):
    x, weight = operands(*shape, dtype)
    for segments in (2, 4):
        parts = [
            gemm(tile_pools[0], a, pack(b.contiguous()), out_dtype=torch.float32)
            for a, b in zip(x.chunk(segments, 1), weight.chunk(segments, 1), strict=True)
        ]
        expected = parts[0] + parts[1] if segments == 2 else (parts[0] + parts[1]) + (parts[2] + parts[3])
        for pool in tile_pools:
            assert same_bits(gemm(pool, x, pack(weight), out_dtype=torch.float32, segments=segments), expected)


def in_place_of_gemm_int8(kernel):
    return lambda name, usual: kernel if name == "gemm_int8" else usual


SEGMENTED = [  # rows, outputs, inputs; segments, each of whole words
    (shape, segments)
    for shape in ((1, 64, 64), (16, 65, 132), (17, 100, 256), (140, 70, 160), (45, 64, 1052))
    for segments in (1, 2, 4)
    if shape[2] % (4 * segments) == 0
]
SEGMENTED.append(((330, 70, 8192), 4))  # three sets of rows, as of bfloat16


@pytest.mark.parametrize(("shape", "segments"), SEGMENTED)
def test_int8_has_the_same_bits_in_both_orders(tile_pools, shape, segments):
    rows, outputs, inputs = shape
    codes = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    weight = pack(Int8Weight(codes, torch.rand(outputs) + 0.01))
    for pool in tile_pools:
        x = quantize_rows(pool, operands(rows, outputs, inputs)[0], segments=segments)
        results = []
        for kernel in ("gemm_int8", "gemm_int8_tile"):
            with pool.watched(in_place_of_gemm_int8(pool.library.functions[kernel])):
                results.append(gemm(pool, x, weight, out_dtype=torch.float32, segments=segments))
        assert same_bits(*results)


INT4_SHAPES = [  # rows, outputs, inputs, group size: groups have one to eleven pieces
    *[(1, 64, 64, 32), (1, 70, 256, 128), (1, 65, 112, 56), (2, 64, 48, 24), (2, 66, 672, 336), (3, 66, 672, 336)],
    *[(19, 65, 256, 128), (33, 70, 40, 8), (21, 64, 96, 32), (258, 64, 120, 40)],
]


def int4_operands(outputs, inputs, group_size, with_zeros):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, generator=generator)
    scales = torch.randn(outputs, inputs // group_size, generator=generator).bfloat16().float()
    zeros = torch.randint(0, 17, scales.shape, dtype=torch.uint8, generator=generator) if with_zeros else None
    return codes, scales, zeros


@of_each_dtype
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("shape", INT4_SHAPES)
def test_an_int4_product_matches_the_definition(tile_pools, shape, with_zeros, dtype):
    rows, outputs, inputs, group_size = shape
    x, weight = operands(rows, outputs, inputs, dtype)[0], int4_operands(outputs, inputs, group_size, with_zeros)
    expected = tile_oracle.int4_product(x, *weight)
    for pool in tile_pools:
        assert same_bits(gemm(pool, x, pack_int4(*weight), out_dtype=torch.float32), expected)


@of_each_dtype
@pytest.mark.parametrize("rows", [1, 2, 3, 17])
def test_int4_products_of_any_bits_match_the_definition(tile_pools, rows, dtype):
    x, weight = any_bits(rows, 200, rows, dtype), int4_operands(70, 200, 40, with_zeros=False)
    for part in (x, (x.float() * 2.0**-60).to(dtype)):
        expected = tile_oracle.int4_product(part, *weight)
        assert same_bits(gemm(tile_pools[0], part, pack_int4(*weight), out_dtype=torch.float32), expected)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_padding_makes_a_positive_zero_of_a_negative_one(tile_pools, rows):
    """Every sum but that of the last piece, which is padded, is a negative denormal and hence -0."""
    x, codes = torch.zeros(rows, 144), torch.full((64, 144), 8, dtype=torch.uint8)
    x[:, [0, 72, 140, 141]], x[:, [104, 142, 143]] = 2.0**-126, 1.25 * 2.0**-126
    codes[:, [72, 140, 141]], codes[:, [0, 104, 142, 143]] = 9, 7
    weight = codes, torch.tensor([[2.0**-20, 1.0]]).expand(64, 2).contiguous(), None
    expected = tile_oracle.int4_product(x, *weight)
    assert not expected.any()
    assert not expected.signbit().any()
    assert same_bits(gemm(tile_pools[0], x.bfloat16(), pack_int4(*weight), out_dtype=torch.float32), expected)


def test_denormals_are_treated_as_zeros(tile_pools):
    """This applies to factors, products and sums."""
    x, weight = (part * 2.0**-64 for part in operands(5, 64, 96))
    x[:, ::5] *= 2.0**-63
    weight[:, ::7] = 2.0**-130
    expected = tile_oracle.product(x, weight)
    assert 0 < (expected == 0).sum() < expected.numel()
    assert same_bits(gemm(tile_pools[0], x, pack(weight), out_dtype=torch.float32), expected)
