"""Models with windows: blocks behind them are released at once, prefixes are shared, and every read block is right."""

import pytest

from paged_serve.engine_core.kv.kv_group import RELEASED
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import unpack_ids


def blocks_held(sequence):
    return [sum(block != RELEASED for block in table) for table in sequence.block_tables]


def alone(drive, prompt, **params):
    """The correct output, which depends on neither windows nor blocks."""
    driver = drive()
    stream = driver.add(prompt, **params)
    return driver.run().tokens[stream]


@pytest.mark.parametrize("windows", [(8,), (0, 8), (8, 0, 3), (8, 8, 0)])
def test_a_decode_row_owns_the_blocks_of_its_window_and_all_blocks_of_a_full_group(drive, windows):
    driver = drive(windows=windows, block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=8)
    stream = driver.add(5, max_tokens=50)
    sequence = driver.sequence(stream)
    while driver.step() and sequence.num_tokens < 55:
        held = blocks_held(sequence)
        for window, count in zip(windows, held, strict=True):
            most = -(-(window - 1) // 4) + 1 if window else 16
            assert count <= most or sequence.num_tokens < 12
    assert driver.tokens[stream] == alone(drive, 5, max_tokens=50)


def test_blocks_behind_the_window_are_released_between_chunks_and_used_again_at_once(drive):
    driver = drive(windows=(4,), block_size=4, num_blocks=5, max_model_len=200, max_num_batched_tokens=8)
    stream = driver.add([1 + i % 90 for i in range(150)], max_tokens=40)
    sequence, most = driver.sequence(stream), 0
    while driver.step():
        most = max(most, sum(blocks_held(sequence)) if sequence.block_tables else 0)
    assert most <= 4, "a window of 4 and a chunk of 8 touch four blocks at most"
    assert len(driver.tokens[stream]) == 40
    assert driver.scheduler.num_preemptions == 0


def test_a_long_prompt_is_admitted_although_not_all_its_blocks_would_fit_at_once(drive):
    full = drive(windows=(0,), block_size=4, num_blocks=24, max_model_len=90, max_num_batched_tokens=16)
    window = drive(windows=(8,), block_size=4, num_blocks=24, max_model_len=90, max_num_batched_tokens=16)
    for driver, num_running in ((full, 1), (window, 2)):
        streams = [driver.add([1 + (i * step) % 89 for i in range(80)], max_tokens=8) for step in (1, 2)]
        driver.step(6)
        assert len(driver.scheduler.running) == num_running
        driver.run()
        assert all(len(driver.tokens[stream]) == 8 for stream in streams)


@pytest.mark.parametrize("windows", [(8,), (8, 0), (0, 8, 3)])
def test_a_prefix_is_found_wherever_its_window_is_cached(drive, windows):
    """The first prompt extends far beyond the common prefix, so its windows there are released."""
    driver = drive(windows=windows, block_size=4, num_blocks=96, max_model_len=64, max_num_batched_tokens=64)
    common = [1 + i % 89 for i in range(24)]
    first = driver.add([*common, *range(100, 125)], max_tokens=4)
    driver.run()
    second = driver.add([*common, *range(200, 225)], max_tokens=4)
    driver.run()
    assert driver.firsts[second].num_cached_tokens == 24
    third = driver.add([*common, *range(100, 125), *driver.tokens[first], 7, 7], max_tokens=4)
    driver.run()
    assert driver.firsts[third].num_cached_tokens == 52, "all full blocks of the first one's tokens"
    assert driver.tokens[second] == alone(drive, [*common, *range(200, 225)], max_tokens=4)


def test_a_hit_needs_only_the_last_window(drive):
    driver = drive(windows=(8, 0), block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=64)
    prompt = [1 + i % 89 for i in range(42)]
    driver.add(prompt, max_tokens=1)
    driver.run()
    pool = driver.engine.kv_cache.pool
    again = driver.add([*prompt[:40], 99, 98], max_tokens=1)
    hashes = driver.sequence(again).block_hashes
    pool.drop([pool.block_of(name) for name in hashes[:8]])  # group 0, behind position 32
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 40
    pool.drop([pool.block_of(hashes[9])])
    third = driver.add([*prompt[:40], 97, 96], max_tokens=1)
    driver.run()
    assert driver.firsts[third].num_cached_tokens == 0, "without the last window's block there is no hit"


def test_a_new_row_lists_only_blocks_that_it_reads(drive):
    driver = drive(windows=(8, 0), block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=64)
    prompt = [1 + i % 89 for i in range(42)]
    driver.add(prompt, max_tokens=1)
    driver.run()
    driver.add(prompt, max_tokens=1)
    [new_row] = driver.plan().new_rows
    window, full = (unpack_ids(table).tolist() for table in new_row.block_tables)
    assert new_row.num_computed_tokens == 40
    assert [index for index, block in enumerate(window) if block != RELEASED] == [8, 9, 10]
    assert len(full) == 11
    assert RELEASED not in full


def test_each_group_of_a_row_gets_its_block_in_the_same_step(drive):
    driver = drive(windows=(0, 8, 0), block_size=4, num_blocks=64)
    driver.add(3, max_tokens=20)
    driver.add(3, max_tokens=20)
    driver.step(4)
    extended = [plan for plan in driver.sent if plan.extended_tables]
    assert [unpack_ids(plan.extended_tables).tolist() for plan in extended] == [[0, 3, 1, 4, 2, 5]]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_siblings_share_the_blocks_of_their_prompt_in_every_group(drive, prefix_caching):
    driver = drive(
        windows=(8, 0), block_size=4, num_blocks=64, prefix_caching=prefix_caching, max_num_batched_tokens=64
    )
    stream = driver.add(30, n=3, max_tokens=8)
    driver.step(3)
    tables = [driver.sequence(stream + index).block_tables for index in range(3)]
    assert [table[0][5:7] for table in tables] == [tables[0][0][5:7]] * 3, "window"
    assert [table[1][:7] for table in tables] == [tables[0][1][:7]] * 3, "full"
    driver.run()
    single = drive()
    again = single.add(30, n=3, max_tokens=8)
    single.run()
    assert [driver.tokens[stream + i] for i in range(3)] == [single.tokens[again + i] for i in range(3)]


def test_shared_blocks_behind_the_window_do_not_starve_a_chunk(drive):
    """Shared blocks do not become free when the first row releases them, so the latest row is preempted."""
    driver = drive(windows=(8, 0), block_size=2, num_blocks=54, max_model_len=60, max_num_batched_tokens=6)
    prompts = [[*([5] * 20), *([10 + index] * 30)] for index in range(4)]
    streams = [driver.add(prompt, max_tokens=6) for prompt in prompts]
    driver.run()
    assert driver.scheduler.num_preemptions == 1
    for stream, prompt in zip(streams, prompts, strict=True):
        assert driver.tokens[stream] == alone(drive, prompt, max_tokens=6)


def test_blocks_behind_the_window_that_may_hold_nan_are_not_found(drive):
    bad = iter([False] * 30 + [True] + [False] * 1000)
    driver = drive(windows=(4, 0), block_size=2, num_blocks=64, max_model_len=64, is_nan=lambda: next(bad))
    stream = driver.add(9, max_tokens=40)
    sequence = driver.sequence(stream)
    while sequence.num_nans == 0:
        driver.step()
    pool, hashes = driver.engine.kv_cache.pool, list(sequence.block_hashes)
    assert len(hashes) == 4
    assert sequence.num_nans == 1
    assert all(pool.block_of(name) == -1 for name in hashes), "group 0"
    driver.run()
    assert driver.tokens[stream] == alone(drive, 9, max_tokens=40)


CHUNK = KVGroup(attention_chunk=16)


@pytest.mark.parametrize("groups", [(CHUNK,), (CHUNK, 0), (0, CHUNK, 3), (KVGroup(attention_chunk=6), CHUNK)])
def test_blocks_before_the_attention_chunk_are_released_at_its_end(drive, groups):
    driver = drive(windows=groups, block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=8)
    stream = driver.add(5, max_tokens=50)
    sequence, before, least = driver.sequence(stream), [0] * len(groups), {}
    while driver.step() and sequence.num_tokens < 55:
        for index, (group, count) in enumerate(zip(groups, blocks_held(sequence), strict=True)):
            if group == CHUNK and count < before[index]:
                least[index] = min(count, least.get(index, count))
            before[index] = count
            assert group != CHUNK or count <= 5 or sequence.num_tokens < 12
    assert all(least[index] <= 1 for index, group in enumerate(groups) if group == CHUNK), "the last one stayed"
    assert driver.tokens[stream] == alone(drive, 5, max_tokens=50)


@pytest.mark.parametrize(("num_common", "needed"), [(40, [8, 9]), (32, []), (28, [4, 5, 6])])
def test_a_hit_needs_the_current_attention_chunk_alone(drive, num_common, needed):
    driver = drive(windows=(CHUNK, 0), block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=64)
    prompt = [1 + i % 89 for i in range(45)]
    driver.add(prompt, max_tokens=1)
    driver.run()
    pool = driver.engine.kv_cache.pool
    again = driver.add([*prompt[:num_common], 99, 98], max_tokens=1)
    hashes = driver.sequence(again).block_hashes
    pool.drop([pool.block_of(name) for index, name in enumerate(hashes[:10]) if index not in needed])
    driver.run()
    assert driver.firsts[again].num_cached_tokens == num_common
    for index in needed:
        pool.drop([pool.block_of(hashes[index])])
    third = driver.add([*prompt[:num_common], 97, 96], max_tokens=1)
    driver.run()
    assert driver.firsts[third].num_cached_tokens == (min(needed) * 4 if needed else num_common)
