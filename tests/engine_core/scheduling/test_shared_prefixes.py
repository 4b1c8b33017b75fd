"""Prompts that begin alike: siblings of one request compute their prompt once, later requests find it in the cache."""

import pytest


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_n_sequences_compute_the_common_prompt_once(drive, prefix_caching, depth):
    driver = drive(prefix_caching=prefix_caching, pipeline_depth=depth, max_num_batched_tokens=16)
    stream = driver.add(22, n=4, seed=1, max_tokens=6)
    driver.run()
    computed = driver.engine.counters.prompt_tokens
    assert computed == 22 + 3  # all share the prompt but its last token, which each computes itself
    assert all(len(driver.tokens[stream + index]) == 6 for index in range(4))


def test_siblings_start_together_once_the_prompt_is_planned(drive):
    driver = drive(pipeline_depth=2)
    driver.add(16, n=4, seed=1, max_tokens=6)
    assert len(driver.plan().new_rows) == 1
    together = driver.plan()
    assert [row.num_computed_tokens for row in together.new_rows] == [15, 15, 15]


def test_siblings_of_an_aborted_leader_find_another_one(drive):
    driver = drive(max_num_batched_tokens=8, prefix_caching=False)
    stream = driver.add(30, n=3, seed=1, max_tokens=4)
    driver.step()
    assert driver.sequence(stream).request.leader is driver.sequence(stream)
    assert driver.scheduler.num_waiting == 2
    driver.abort(stream)
    driver.run()
    assert [len(driver.tokens[stream + index]) for index in range(3)] == [0, 4, 4]
    assert driver.engine.counters.prompt_tokens == 8 + 30 + 1


def test_a_second_request_shares_full_blocks_but_computes_its_last_token(drive):
    driver = drive()
    first = driver.add(16, max_tokens=1)
    driver.run()
    second = driver.add(16, max_tokens=1)
    driver.run()
    assert driver.firsts[first].num_cached_tokens == 0
    assert driver.firsts[second].num_cached_tokens == 12
    assert driver.engine.counters.prefix_cache_hits == 12


def test_a_chats_next_turn_finds_prompt_and_answer(drive):
    driver = drive()
    first = driver.add(10, max_tokens=15)
    driver.run()
    prompt = [1 + i % 97 for i in range(10)] + driver.tokens[first] + [3, 3, 3]
    second = driver.add(prompt, max_tokens=1)
    driver.run()
    assert driver.firsts[second].num_cached_tokens == 24  # the answer's last token was never computed


def test_the_start_of_a_prompt_stays_in_the_cache_longer_than_its_end(drive):
    driver = drive(num_blocks=8, block_size=4)
    driver.add(20, max_tokens=1)
    driver.run()
    driver.add([90] * 20, max_tokens=1)  # needs 5 blocks; 4 are blank
    driver.run()
    again = driver.add(20, max_tokens=1)
    driver.run()
    assert driver.firsts[again].num_cached_tokens == 12


@pytest.mark.parametrize(
    ("options", "second"),
    [({"prefix_caching": False}, {}), ({}, {"skip_reading_prefix_cache": True}), ({}, {"salt": "other"})],
)
def test_the_prefix_cache_can_be_disabled(drive, options, second):
    driver = drive(**options)
    driver.add(16, max_tokens=1)
    driver.run()
    stream = driver.add(16, max_tokens=1, **second)
    driver.run()
    assert driver.firsts[stream].num_cached_tokens == 0


def test_blocks_are_found_only_after_their_results_were_applied(drive):
    driver = drive(pipeline_depth=2)
    driver.add(16, max_tokens=5)
    driver.plan()
    stream = driver.add(16, max_tokens=5)
    driver.plan()  # the first prompt is in flight, not applied
    assert driver.sequence(stream).num_cached_tokens == 0
