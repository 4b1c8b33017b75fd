"""Paged attention of every built instruction set: close to its float64 definition, and independent for each token."""

from dataclasses import replace

import pytest
import torch

from .attention_cases import CODED, FLOATS, NO_BLOCK, assert_near, make_case


@pytest.fixture(scope="module")
def cpu_pools(pools_of_each_order):
    return pools_of_each_order


EDGES = [(0, 1), (6, 1), (7, 1), (8, 1), (15, 1), (16, 1), (62, 1), (63, 1), (64, 1), (65, 1), (127, 1), (200, 1)]
CHUNKS = [(0, 2), (0, 64), (0, 65), (1, 63), (3, 126), (50, 33), (63, 2), (64, 64), (130, 70)]


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(EDGES, id="decode", marks=pytest.mark.nightly),
        pytest.param(CHUNKS, id="chunks", marks=pytest.mark.nightly),
        pytest.param([*EDGES, *CHUNKS], id="both"),
    ],
)
@pytest.mark.parametrize(
    "head_dim",
    [
        16,
        20,
        34,
        48,
        *(pytest.param(dim, marks=pytest.mark.long_in_software) for dim in (32, 64, 80, 96, 128, 256, 272)),
    ],
)
def test_attention_matches_its_definition(cpu_pools, rows, head_dim, dtypes):
    case = make_case(rows, dtypes, head_dim=head_dim)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("window", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 8, 100)), 1, 7, 33, 64])
def test_a_window_hides_earlier_keys(cpu_pools, window, dtypes):
    case = make_case([*EDGES[::3], *CHUNKS, (1200, 1), (1000, 90)], dtypes, group=3, head_dim=64, window=window)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("chunk", [*(pytest.param(n, marks=pytest.mark.nightly) for n in (64, 100, 2000)), 1, 48, 128])
def test_an_attention_chunk_hides_what_lies_before_it(cpu_pools, chunk, dtypes):
    rows = [*EDGES[::3], *CHUNKS, (1200, 1), (1000, 90), (chunk - 1, 1), (chunk, 1)]
    case = make_case(rows, dtypes, group=3, head_dim=64, attention_chunk=chunk)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
def test_pairs_add_what_the_table_has_for_the_query_and_the_key(cpu_pools, dtypes):
    rows = [(0, 1), (0, 70), (0, 300)]
    case = make_case(rows, dtypes, group=2, head_dim=64, reach=128, is_bidirectional=True)
    positions = torch.cat([torch.arange(new) for _, new in rows])
    heads, distances = torch.arange(4).view(1, 4, 1), torch.arange(384) - positions.view(-1, 1, 1)
    pairs = case.options.biases(heads, distances).contiguous()
    as_pairs = replace(case, options=replace(case.options, bias=None, pairs=pairs))
    for pool in cpu_pools:
        assert_near(as_pairs.run(pool), case)


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", [{}, {"cap": 4.0, "alibi": True, "window": 90}], ids=str)
def test_a_sink_joins_the_denominator_of_its_head(cpu_pools, options, dtypes):
    rows = [(0, 1), (200, 1), (100, 70), (1100, 3), (1030, 1)]
    case = make_case(rows, dtypes, group=3, head_dim=64, sinks=True, **options)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


@pytest.mark.parametrize("dtypes", FLOATS, ids=str)
def test_a_sink_far_below_the_scores_changes_nothing_and_one_far_above_leaves_zeros(cpu_pools, dtypes):
    case = make_case([(0, 20), (200, 1)], dtypes)
    expected = case.run(cpu_pools[0])
    for sink, share in ((-1e30, 1.0), (-100.0, 1.0), (200.0, 0.0), (1e30, 0.0)):
        case.options = replace(case.options, sinks=torch.full((4,), sink))
        torch.testing.assert_close(case.run(cpu_pools[0]), expected * share, rtol=1e-6, atol=1e-6)


MASKS = [{"window": 20}, {"attention_chunk": 56}]


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_keys_outside_every_mask_may_hold_anything_and_have_no_block(cpu_pools, dtypes, mask):
    case = make_case([(100, 1), (60, 5), (90, 40)], dtypes, head_dim=64, **mask)
    expected = case.run(cpu_pools[0])
    first = [case.options.mask.first_seen(old) for old, _ in case.rows]
    for unseen, table in zip(map(torch.arange, first), case.tables, strict=True):
        for held in case.scales or case.cache:
            held[table[unseen // 16].long(), :, unseen % 16] = torch.nan
    assert torch.equal(case.run(cpu_pools[0]), expected)
    for end, table in zip(first, case.tables, strict=True):
        table[: end // 16] = NO_BLOCK
    for pool in cpu_pools:
        assert torch.equal(case.run(pool), expected)


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", [{"cap": 0.5}, {"cap": 5.0, "window": 90}, {"cap": 50.0}], ids=str)
def test_a_cap_bounds_the_scores(cpu_pools, options, dtypes):
    case = make_case([(5, 1), (200, 1), (100, 70)], dtypes, group=2, head_dim=64, **options)
    case.options = replace(case.options, scale=8 * case.options.scale)
    assert_near(case.run(cpu_pools[0]), case)


ALIBI = [{}, {"window": 90}, {"cap": 4.0}]


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", ALIBI, ids=str)
def test_alibi_lowers_scores_with_the_distance(cpu_pools, options, dtypes):
    case = make_case([(0, 1), (200, 1), (100, 70), (1100, 3)], dtypes, group=3, head_dim=64, alibi=True, **options)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


RELATIVE = [
    {"reach": 128, "is_bidirectional": True},
    {"reach": 1, "is_bidirectional": True},
    {"reach": 300, "cap": 4.0},
]


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", RELATIVE, ids=str)
def test_relative_positions_add_what_the_table_has_for_the_distance(cpu_pools, options, dtypes):
    case = make_case([(0, 1), (0, 70), (0, 300), (1100, 3)], dtypes, group=3, head_dim=64, **options)
    for pool in cpu_pools:
        assert_near(case.run(pool), case)


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", [{}, {"cap": 4.0, "alibi": True}, {"reach": 128}], ids=str)
def test_bidirectional_tokens_attend_to_all_keys_of_their_row(cpu_pools, options, dtypes):
    rows = [(0, 1), (0, 6), (0, 64), (0, 65), (0, 150), (0, 300)]
    case = make_case(rows, dtypes, group=2, head_dim=48, is_bidirectional=True, **options)
    whole = case.run(cpu_pools[0])
    assert_near(whole, case)
    for pool in cpu_pools:
        assert torch.equal(case.run(pool), whole)
    for row, found in enumerate(whole.split([new for _, new in rows])):
        assert torch.equal(case.run_chunk(cpu_pools[1], [row], [(0, rows[row][1])]), found)


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 17, 40])
def test_any_number_of_queries_shares_a_key(cpu_pools, group, dtypes):
    case = make_case([(0, 1), (70, 1), (20, 3), (10, 60)], dtypes, group=group, kv_heads=1 if group > 8 else 2)
    assert_near(case.run(cpu_pools[0]), case)


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
def test_any_number_of_tokens_has_the_bits_of_a_few(cpu_pools, dtypes):
    """From 17 rows on panels are used: in blocks that are as even as can be, of each possible size."""
    case = make_case([(30, new) for new in range(17, 34)], dtypes, group=1, kv_heads=1)
    whole = case.run(cpu_pools[0]).split([new for _, new in case.rows])
    for first in range(0, 33, 11):
        rows = [row for row, (_, new) in enumerate(case.rows) if new > first]
        spans = [(first, min(first + 11, case.rows[row][1])) for row in rows]
        expected = torch.cat([whole[row][slice(*span)] for row, span in zip(rows, spans, strict=True)])
        assert torch.equal(case.run_chunk(cpu_pools[1], rows, spans), expected)


RANGES = [(1023, 1), (1024, 1), (2500, 1), (3100, 3), (1000, 100), (2040, 20)]


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"window": 1500}, {"window": 500}, {"attention_chunk": 1100, "sinks": True}], ids=str
)
def test_long_sequences_are_summed_range_by_range(cpu_pools, options, dtypes):
    for rows in (RANGES, RANGES[2:3], RANGES[4:5]):
        case = make_case(rows, dtypes, kv_heads=1, group=4, head_dim=64, **options)
        whole = case.run(cpu_pools[0])
        assert_near(whole, case)
        assert torch.equal(case.run(cpu_pools[1]), whole)


INVARIANT = [
    {"group": 2, "head_dim": 128},
    {"group": 4, "head_dim": 80, "window": 33},
    {"group": 7, "head_dim": 32, "cap": 3.0},
    {"group": 3, "head_dim": 20},
    {"group": 3, "head_dim": 16, "alibi": True},
    {"group": 2, "head_dim": 32, "reach": 40},
    {"group": 4, "head_dim": 32, "attention_chunk": 100, "sinks": True},
    *(
        pytest.param(options, marks=pytest.mark.nightly)
        for options in (
            {"group": 1, "head_dim": 64},
            {"group": 5, "head_dim": 48},
            {"group": 8, "head_dim": 256, "window": 100},
            {"group": 2, "head_dim": 272},
        )
    ),
]


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("options", INVARIANT, ids=str)
def test_a_token_has_the_same_bits_in_any_chunk_and_batch(cpu_pools, options, dtypes):
    case = make_case([(0, 150), (1010, 30), (0, 40)], dtypes, **options)
    whole = case.run(cpu_pools[0]).split([new for _, new in case.rows])
    for row, (_, new) in enumerate(case.rows):
        for size in (1, 3, 8, 29, 64):
            for start in range(0, new, max(size, 7)):
                span = (start, min(start + size, new))
                pool = cpu_pools[start % 2]
                assert torch.equal(case.run_chunk(pool, [row], [span]), whole[row][slice(*span)]), (row, span)
    spans = [(140, 141), (3, 30), (39, 40)]
    beside = case.run_chunk(cpu_pools[1], [2, 0, 1], [spans[2], spans[0], spans[1]])
    assert torch.equal(beside, torch.cat([whole[2][39:40], whole[0][140:141], whole[1][3:30]]))


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
def test_the_size_of_blocks_changes_no_bit(cpu_pools, dtypes):
    rows = [(0, 100), (130, 1), (1050, 2)]
    expected = make_case(rows, dtypes, head_dim=64).run(cpu_pools[0])
    for block_size in (32, 48, 64, 256):
        assert torch.equal(make_case(rows, dtypes, head_dim=64, block_size=block_size).run(cpu_pools[0]), expected)


@pytest.mark.parametrize("dtypes", FLOATS, ids=str)
def test_nan_and_infinity_affect_only_the_tokens_that_attend_to_them(cpu_pools, dtypes):
    case = make_case([(0, 160), (0, 100), (80, 1)], dtypes, head_dim=64)
    expected = case.run(cpu_pools[0])
    blocks = case.tables[0].long()
    case.cache[0, blocks[50 // 16], 0, 50 % 16] = torch.nan
    case.cache[1, blocks[140 // 16], 1, 140 % 16, 5] = torch.inf
    found = case.run(cpu_pools[0])
    assert found[50:160, :2].isnan().all()
    assert found[140:160, 2:, 5].isinf().all()
    unharmed = torch.ones_like(found, dtype=torch.bool)
    unharmed[50:160, :2] = False
    unharmed[128:160, 2:, 5] = False  # 0 times infinity: it also harms tokens of its own request in its own tile
    assert torch.equal(found[unharmed], expected[unharmed])


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
def test_what_a_long_request_has_in_a_tile_is_not_left_for_shorter_ones(cpu_pools, dtypes):
    case = make_case([(0, 300), (64, 6), (0, 20), (3, 1)], dtypes, group=3, head_dim=48)
    expected = case.run(cpu_pools[0])
    blocks = case.tables[0, : -(-300 // 16)].long()
    for held in case.scales or case.cache:
        held[blocks] = torch.nan
    for pool in cpu_pools:
        found = case.run(pool)
        assert found[:300].isnan().all()
        assert torch.equal(found[300:], expected[300:])


@pytest.mark.parametrize("dtypes", FLOATS + CODED, ids=str)
@pytest.mark.parametrize("head_dim", [20, 34])
def test_a_query_that_is_nan_affects_its_own_result_alone(cpu_pools, head_dim, dtypes):
    """Rows of queries are longer than heads of these sizes."""
    case = make_case([(0, 70), (40, 2)], dtypes, head_dim=head_dim)
    expected = case.run(cpu_pools[0])
    case.query[:, 1] = case.query[10, 2] = torch.nan
    for pool in cpu_pools:
        found = case.run(pool)
        assert torch.equal(found.isnan(), case.query.isnan())
        assert torch.equal(found[~found.isnan()], expected[~found.isnan()])


@pytest.mark.parametrize("dtypes", CODED, ids=str)
def test_a_scale_that_is_nan_or_infinite_affects_only_the_tokens_that_attend_to_it(cpu_pools, dtypes):
    case = make_case([(0, 160), (0, 100), (80, 1)], dtypes, head_dim=64)
    expected = case.run(cpu_pools[0])
    blocks = case.tables[0].long()
    case.scales[0][blocks[50 // 16], 0, 50 % 16] = torch.nan
    case.scales[1][blocks[140 // 16], 1, 140 % 16] = torch.inf
    found = case.run(cpu_pools[0])
    assert found[50:160, :2].isnan().all()
    assert not found[140:160, 2:].isfinite().any()
    unharmed = torch.ones_like(found, dtype=torch.bool)
    unharmed[50:160, :2] = unharmed[140:160, 2:] = False
    assert torch.equal(found[unharmed], expected[unharmed])


def test_queries_and_results_may_be_strided(cpu_pools):
    case = make_case([(3, 5), (40, 1)], FLOATS[0])
    expected = case.run(cpu_pools[0])
    wide = torch.full((6, 10, 32), 3.0, dtype=torch.bfloat16)
    wide[:, 2:6] = case.query
    case.query = wide[:, 2:6]
    assert torch.equal(case.run(cpu_pools[0]), expected)
