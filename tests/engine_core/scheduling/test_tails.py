"""Sequences that start within a block: the partial block of an earlier sequence, or of a sibling, is copied."""

import pytest

from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import unpack_ids

STATE = KVGroup(is_state=True)
MODELS = [(0,), (8, 0), (KVGroup(attention_chunk=16), 0), (STATE,), (STATE, 0), (0, 8, STATE)]
PROMPT = [1 + i % 97 for i in range(10)]


def new_driver(drive, groups, **options):
    return drive(**{"windows": groups, "block_size": 4, "num_blocks": 128, "max_num_batched_tokens": 64} | options)


def alone(drive, prompt, **params):
    """The correct output, which does not depend on blocks."""
    driver = drive()
    stream = driver.add(prompt, **params)
    return driver.run().tokens[stream]


def copies(driver):
    """The pairs of all plans."""
    return [pair for plan in driver.sent for pair in unpack_ids(plan.copied_blocks)]


@pytest.mark.parametrize("groups", MODELS)
def test_the_next_turn_starts_after_the_last_computed_token(drive, groups):
    driver = new_driver(drive, groups)
    first = driver.add(PROMPT, max_tokens=12)
    driver.run()
    assert not copies(driver)
    turn = [*PROMPT, *driver.tokens[first], 3, 3, 3]
    second = driver.add(turn, max_tokens=4)
    driver.run()
    assert driver.firsts[second].num_cached_tokens == 21, "all but the last token, which was not computed"
    assert len(copies(driver)) == 2 * len(groups)
    assert driver.tokens[second] == alone(drive, turn, max_tokens=4)


@pytest.mark.parametrize("groups", MODELS)
def test_a_step_of_a_beam_search_computes_one_token_for_each_beam(drive, groups):
    driver = new_driver(drive, groups)
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    beams = [[*PROMPT, 20 + index] for index in range(3)]
    for step in range(9):
        before = driver.engine.counters.prompt_tokens
        streams = [driver.add(beam, max_tokens=1) for beam in beams]
        driver.run()
        assert driver.engine.counters.prompt_tokens == before + len(beams), f"step {step}"
        for beam, stream in zip(beams, streams, strict=True):
            assert driver.tokens[stream] == alone(drive, beam, max_tokens=1)
        beams = [[*beams[index // 2], 30 + 3 * step + index] for index in range(3)]  # two continue the first one


def test_a_tail_is_found_only_by_sequences_that_continue_all_of_it(drive):
    driver = new_driver(drive, (0,))
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    for prompt, salt, num_cached in (
        (PROMPT, "", 8),  # its last token has to be computed
        ([*PROMPT, 5], "", 10),
        ([*PROMPT[:9], 90, 91], "", 8),
        ([*PROMPT, 5], "salt", 0),
    ):
        stream = driver.add(prompt, max_tokens=1, salt=salt)
        driver.run()
        assert driver.firsts[stream].num_cached_tokens == num_cached


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("groups", MODELS)
def test_siblings_compute_one_token_of_the_prompt_each(drive, groups, prefix_caching):
    driver = new_driver(drive, groups, prefix_caching=prefix_caching, max_num_batched_tokens=8, max_num_seqs=8)
    stream = driver.add(27, n=5, seed=1, max_tokens=9)
    driver.run()
    assert driver.engine.counters.prompt_tokens == 27 + 4
    assert len(copies(driver)) == 4 * 2 * len(groups)
    single = drive()
    again = single.add(27, n=5, seed=1, max_tokens=9)
    single.run()
    assert [driver.tokens[stream + i] for i in range(5)] == [single.tokens[again + i] for i in range(5)]


@pytest.mark.parametrize("groups", [(STATE,), (STATE, 0)])
def test_a_sibling_that_misses_the_leaders_state_leads_the_others(drive, groups):
    """Two rows: the third sibling starts when the leader decodes, from the last full block."""
    driver = new_driver(drive, groups, max_num_seqs=2)
    stream = driver.add(27, n=4, seed=1, max_tokens=9)
    driver.run()
    single = drive()
    again = single.add(27, n=4, seed=1, max_tokens=9)
    single.run()
    assert [driver.tokens[stream + i] for i in range(4)] == [single.tokens[again + i] for i in range(4)]


def test_an_evicted_tail_is_not_found_and_the_last_block_suffices_without_it(drive):
    driver = new_driver(drive, (0,), num_blocks=4, max_model_len=16)
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    pool = driver.engine.kv_cache.pool
    assert pool.num_cached == 3
    whole = driver.add([*PROMPT, 5, 6, 7], max_tokens=3)  # needs all blocks: there is no room to keep the tail
    driver.run()
    assert driver.firsts[whole].num_cached_tokens == 8
    driver.add([7] * 12, max_tokens=4)
    driver.run()
    stream = driver.add([*PROMPT, 5], max_tokens=1)
    driver.run()
    assert driver.firsts[stream].num_cached_tokens == 0


def test_a_tail_of_an_aborted_prompt_ends_with_its_state(drive):
    driver = new_driver(drive, (STATE, 0), max_num_batched_tokens=22)
    prompt = [1 + i % 97 for i in range(23)]
    stream = driver.add(prompt, max_tokens=4)
    driver.plan()
    driver.execute()
    driver.apply()
    driver.plan()  # the last token of the prompt: the state that 22 tokens left is overwritten
    driver.execute()
    driver.abort(stream)
    driver.run()
    again = driver.add([*prompt, 5, 6], max_tokens=2)
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 23
    assert driver.tokens[again] == alone(drive, [*prompt, 5, 6], max_tokens=2)


def test_new_workers_have_no_tails(drive):
    driver = new_driver(drive, (0,))
    driver.add(PROMPT, max_tokens=1)
    driver.run()
    driver.engine.workers_replaced(1, 0.0, from_outside=True)
    driver.worker.epoch = 1
    stream = driver.add([*PROMPT, 5], max_tokens=1)
    driver.run()
    assert driver.firsts[stream].num_cached_tokens == 0


def test_a_tail_that_may_hold_nan_is_not_found(drive):
    driver = new_driver(drive, (0,), is_nan=iter([False, True] + [False] * 99).__next__, pipeline_depth=2)
    stream = driver.add(PROMPT, max_tokens=20)
    for _ in range(2):
        driver.plan()
        driver.execute()
    driver.apply()
    driver.abort(stream)  # the result that is not finite is in flight
    driver.run()
    turn = [*PROMPT, *driver.tokens[stream], 4]
    again = driver.add(turn, max_tokens=2)
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 0
