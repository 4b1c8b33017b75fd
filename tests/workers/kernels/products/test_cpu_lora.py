"""lora.cpp: sums against float64, and to the bit whatever stands beside a row."""

import pytest
import torch

from paged_serve.workers.checkpoint.weight_forms import Fp8Weight, Int8Weight
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.loading import packed
from paged_serve.workers.kernels.cpu.lora.products import lora_announce, lora_expand, lora_look_up, lora_shrink

from ...emulation.amx import is_emulated as has_emulated_tiles
from ...lora_case import LoraCase, table_of
from ...portable_numbers import assert_same_bits, normals

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def computed(pool, case, places, rows=None, segments=1, shares=1):
    """The results of `rows` (None: all) of the case; their adapters are at `places`."""
    rows = list(range(len(case.x))) if rows is None else rows
    deltas = case.deltas(segments)
    groups = table_of([places[row] for row in rows])
    sums = torch.full((shares, len(rows), deltas.width), torch.nan)
    for share in range(shares):
        part = case.deltas(segments // shares, share, shares)
        lora_shrink(pool, part, groups.table, case.x_share(rows, share, shares), sums[share])
    y = case.y[rows].clone()
    lora_expand(pool, deltas, groups.table, sums, y, None)
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [1, 15, 64, 77, 1024])
def test_results_are_right_and_rows_without_adapters_untouched(cpu_pools, dtype, inputs):
    case = LoraCase(inputs, (70, 64, 3), (5, 16, 1), dtype, rows=40)
    places = [row % 4 for row in range(40)]
    expected = case.exact(places)
    results = [computed(pool, case, places) for pool in cpu_pools]
    torch.testing.assert_close(results[0].double(), expected, rtol=case.tolerance, atol=case.tolerance)
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0][::4], case.y[::4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_alone_has_its_bits(cpu_pools, dtype):
    case = LoraCase(200, (130,), (16, 7), dtype, rows=50)
    places = [1 + row % 2 for row in range(50)]
    together = computed(cpu_pools[1], case, places)
    for row in range(50):
        assert_same_bits(computed(cpu_pools[0], case, places, [row]), together[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shares_of_ranks_have_the_bits_of_segments(cpu_pools, dtype):
    case = LoraCase(4 * 52, (65,), (16, 7), dtype, rows=20)
    places = [row % 3 for row in range(20)]
    whole = computed(cpu_pools[0], case, places, segments=4)
    for shares in (2, 4):
        assert_same_bits(computed(cpu_pools[0], case, places, segments=4, shares=shares), whole)


def weight_of(form, outputs, inputs):
    values = normals((outputs, inputs), 3)
    match form:
        case "int8":
            return Int8Weight((values * 40).clamp(-127, 127).to(torch.int8), torch.full((outputs,), 1 / 40))
        case "fp8":
            return Fp8Weight(values.to(torch.float8_e4m3fn), torch.ones(outputs))
        case _:
            return values.to(form)


SHARES_EVENLY = {"avx2": (torch.float32,), **dict.fromkeys(("avx512fma", "amx"), (torch.float32, "int8"))}  # gemm.h


def computes_some(pool, form, rows, segments):
    """Products of few rows have no time for it; those by AMX's tiles, as of int8 in either order, do not know of it."""
    is_by_tiles = form == "int8" and (pool.library.isa == "amx" or has_emulated_tiles)
    # of segments, few rows at a time are multiplied, and every pass may have its share of the next chunk to fetch
    has_no_time = segments > 1 and form in SHARES_EVENLY.get(pool.library.isa, ())
    return rows == 100 and not is_by_tiles and not has_no_time


@pytest.mark.long_in_software  # the tests above and below compare the portable sums
@pytest.mark.parametrize("form", [*DTYPES, "int8", "fp8"], ids=str)
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize("is_head", [False, True], ids=["layer", "head"])  # logits are float32
def test_a_product_that_computes_some_of_it_changes_no_bit(cpu_pools, form, segments, rows, is_head):
    dtype = torch.bfloat16 if isinstance(form, str) else form
    y_dtype = torch.float32 if is_head else dtype
    ranks = (16, 5, 32, 1, *range(2, 14))
    case = LoraCase(512, (1400, 70, 310), ranks, dtype, rows)
    places = [row % 17 if row < 24 else 3 for row in range(rows)]  # groups of one, two and more rows
    weight, x = packed(cpu_pools[0], weight_of(form, 1780, 512)), case.x.contiguous()
    deltas, groups = case.deltas(segments), table_of(places)
    for pool in cpu_pools:
        case.y = gemm(pool, x, weight, out_dtype=y_dtype, segments=segments)
        expected = computed(pool, case, places, segments=segments)
        for whole in (True, False):
            sums, early = torch.full((rows, deltas.width), torch.nan), torch.full((rows, 1780), torch.nan)
            lora_announce(pool, deltas, groups.table, case.x, sums, early if whole else None)
            y = gemm(pool, x, weight, out_dtype=y_dtype, segments=segments)
            some = computes_some(pool, form, rows, segments)
            assert (~sums.isnan()).any() == some
            if pool is cpu_pools[0]:  # a thread may come too late for its share, and the rest then waits for that
                assert (~early.isnan()).any() == (some and whole)
            lora_shrink(pool, deltas, groups.table, case.x, sums)
            lora_expand(pool, deltas, groups.table, sums.unsqueeze(0), y, early if whole else None)
            assert_same_bits(y, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_embedding_reads_the_rows_of_its_tokens(cpu_pools, dtype):
    case = LoraCase(90, (65,), (6, 20), dtype, rows=40, is_table=True)
    places = [row % 3 for row in range(40)]
    deltas, groups = case.deltas(), table_of(places)
    sums, y = torch.full((40, deltas.width), torch.nan), case.y.clone()
    lora_look_up(cpu_pools[1], deltas, groups.table, case.ids, sums)
    lora_expand(cpu_pools[1], deltas, groups.table, sums.unsqueeze(0), y, None)
    torch.testing.assert_close(y.double(), case.exact(places), rtol=case.tolerance, atol=case.tolerance)


def test_float_logits_of_16_bit_rows(cpu_pools):
    case = LoraCase(64, (100,), (8,), torch.bfloat16, rows=5)
    case.y = case.y.float()
    found = computed(cpu_pools[0], case, [1, 0, 1, 1, 0])
    torch.testing.assert_close(found.double(), case.exact([1, 0, 1, 1, 0]), rtol=1e-5, atol=1e-4)
