"""Models with state groups: a row keeps its last state, and full blocks keep states."""

import pytest

from paged_serve.engine_core.kv.kv_group import RELEASED
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import unpack_ids

STATE = KVGroup(is_state=True)
MODELS = [(STATE,), (STATE, 0), (0, STATE, STATE), (STATE, 8, 0), (KVGroup(attention_chunk=16), STATE)]
PROMPT = [1 + i % 89 for i in range(42)]


def blocks_held(sequence, index=0):
    return sum(block != RELEASED for block in sequence.block_tables[index])


def alone(drive, prompt, **params):
    """The correct output, which depends on neither states nor blocks."""
    driver = drive()
    stream = driver.add(prompt, **params)
    return driver.run().tokens[stream]


@pytest.mark.parametrize("groups", MODELS)
def test_a_decode_row_owns_its_state_and_the_one_before_it(drive, groups):
    driver = drive(windows=groups, block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=8)
    stream = driver.add(5, max_tokens=50)
    sequence, index = driver.sequence(stream), groups.index(STATE)
    while driver.step() and sequence.num_tokens < 55:
        assert sequence.num_tokens < 12 or blocks_held(sequence, index) <= 2
    assert driver.tokens[stream] == alone(drive, 5, max_tokens=50)


def test_a_recurrent_model_has_no_limit_of_context_but_a_number_of_rows(drive):
    driver = drive(windows=(STATE,), block_size=4, num_blocks=8, max_model_len=10**6, max_num_batched_tokens=8)
    assert driver.engine.kv_cache.capacity_tokens > 10**9
    streams = [driver.add([1 + (i * step) % 89 for i in range(300)], max_tokens=100) for step in (1, 2)]
    driver.run()
    assert [len(driver.tokens[stream]) for stream in streams] == [100, 100]
    assert driver.scheduler.num_preemptions == 0


@pytest.mark.parametrize("groups", MODELS)
def test_a_hit_starts_from_the_state_at_its_end_and_computes_only_the_rest(drive, groups):
    driver = drive(windows=groups, block_size=4, num_blocks=128, max_model_len=64, max_num_batched_tokens=64)
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    num_sent = len(driver.sent)
    again = driver.add([*PROMPT[:30], 99, 98, 97], max_tokens=4)
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 28
    [chunk] = [chunk for plan in driver.sent[num_sent:] for chunk in plan.chunks]
    assert chunk.num_tokens == 33 - 28, "the computed tokens"
    assert driver.tokens[again] == alone(drive, [*PROMPT[:30], 99, 98, 97], max_tokens=4)


def test_a_hit_needs_the_last_state_alone(drive):
    driver = drive(windows=(STATE, 0), block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=64)
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    pool = driver.engine.kv_cache.pool
    again = driver.add([*PROMPT[:40], 99, 98], max_tokens=1)
    hashes = driver.sequence(again).block_hashes
    pool.drop([pool.block_of(name) for name in hashes[:9]])  # group 0: all states but the last
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 40
    pool.drop([pool.block_of(hashes[9])])
    third = driver.add([*PROMPT[:40], 97, 96], max_tokens=1)
    driver.run()
    assert driver.firsts[third].num_cached_tokens == 0, "without a state there is no hit"


def test_a_new_row_lists_one_state_and_the_blocks_that_it_writes(drive):
    driver = drive(windows=(STATE, 0), block_size=4, num_blocks=64, max_model_len=64, max_num_batched_tokens=64)
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    driver.add(PROMPT, max_tokens=1)
    [new_row] = driver.plan().new_rows
    states, full = (unpack_ids(table).tolist() for table in new_row.block_tables)
    assert new_row.num_computed_tokens == 40
    assert [index for index, block in enumerate(states) if block != RELEASED] == [9, 10]
    assert RELEASED not in full


@pytest.mark.parametrize("chunk", [5, 8, 64])
def test_every_turn_of_a_chat_starts_from_the_last_state_of_the_turn_before(drive, chunk):
    driver = drive(windows=(0, STATE), block_size=4, num_blocks=256, max_model_len=200, max_num_batched_tokens=chunk)
    text, num_computed = list(PROMPT), 0
    for turn in range(4):
        stream = driver.add(text, max_tokens=13)
        driver.run()
        assert driver.tokens[stream] == alone(lambda **kw: drive(max_model_len=200), text, max_tokens=13)
        if turn:
            assert driver.firsts[stream].num_cached_tokens == num_computed
        num_computed = len(text) + 12  # the last token is not computed
        text = [*text, *driver.tokens[stream], 7 + turn, 9]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("prompt_len", [29, 32, 33])
def test_siblings_start_from_the_same_state(drive, prefix_caching, prompt_len):
    driver = drive(
        windows=(STATE, 0), block_size=4, num_blocks=64, prefix_caching=prefix_caching, max_num_batched_tokens=64
    )
    stream = driver.add(prompt_len, n=3, max_tokens=8)
    driver.step(3)
    tables = [driver.sequence(stream + index).block_tables for index in range(3)]
    shared, own = (prompt_len - 1) // 4 - 1, (prompt_len - 1) // 4
    assert len({table[0][shared] for table in tables} - {RELEASED}) <= 1, "the kept state"
    assert len({table[0][own] for table in tables}) == 3, "states that are written"
    driver.run()
    single = drive()
    again = single.add(prompt_len, n=3, max_tokens=8)
    single.run()
    assert [driver.tokens[stream + i] for i in range(3)] == [single.tokens[again + i] for i in range(3)]


def test_preempted_and_restarted_rows_go_on_with_the_right_state(drive):
    driver = drive(windows=(0, STATE), block_size=2, num_blocks=40, max_model_len=60, max_num_batched_tokens=12)
    prompts = [[10 + index] * 20 for index in range(3)]
    streams = [driver.add(prompt, max_tokens=20) for prompt in prompts]
    driver.run()
    assert driver.scheduler.num_preemptions > 0
    for stream, prompt in zip(streams, prompts, strict=True):
        assert driver.tokens[stream] == alone(drive, prompt, max_tokens=20)


def test_states_that_may_hold_nan_are_not_found(drive):
    bad = iter([False] * 30 + [True] + [False] * 1000)
    driver = drive(windows=(STATE, 0), block_size=2, num_blocks=64, max_model_len=64, is_nan=lambda: next(bad))
    stream = driver.add(9, max_tokens=40)
    sequence = driver.sequence(stream)
    while sequence.num_nans == 0:
        driver.step()
    pool, hashes = driver.engine.kv_cache.pool, list(sequence.block_hashes)
    assert len(hashes) == 4
    assert all(pool.block_of(name) == -1 for name in hashes), "group 0"
    driver.run()
    assert driver.tokens[stream] == alone(drive, 9, max_tokens=40)
