"""A full engine makes room for a tenant that is not ahead by preempting one that is; no token is lost."""

import pytest

from paged_serve.engine_core.scheduling.preemption import MAX_YIELDED, reserve_rows


def occupy(driver, tenant, count, **options):
    """`count` running sequences of a tenant that is far ahead."""
    streams = [driver.add(8, tenant=tenant, **options) for _ in range(count)]
    while any(not driver.sequence(stream).joined_step for stream in streams):
        driver.step()
    shares = driver.scheduler.shares
    shares.tenants[tenant].service = shares.virtual_time + 1.5 * shares._batch_cost
    return streams


def test_a_full_engine_makes_room_for_a_tenant_that_is_not_ahead_and_nothing_else_is_lost(drive):
    driver = drive(max_num_seqs=3, pipeline_depth=2)
    greedy = occupy(driver, "greedy", 3, max_tokens=40)
    waiting = driver.add(8, max_tokens=4, tenant="greedy")
    modest = driver.add(8, max_tokens=4, tenant="modest")
    driver.step(3)
    assert driver.tokens[modest]
    assert [driver.sequence(stream).num_yielded for stream in greedy] == [0, 0, 1]
    driver.run()
    alone = drive(max_num_seqs=3)
    again = [alone.add(8, max_tokens=count) for count in (40, 40, 40, 4, 4)]
    alone.run()
    assert [driver.tokens[stream] for stream in (*greedy, waiting, modest)] == [alone.tokens[s] for s in again]


def test_preemption_also_returns_blocks(drive):
    driver = drive(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=40)
    occupy(driver, "greedy", 4, max_tokens=8)
    modest = driver.add(20, max_tokens=4, tenant="modest")
    driver.step(2)
    assert driver.tokens[modest]
    assert driver.scheduler.num_preemptions > 0
    driver.run()


def test_no_sequence_is_preempted_for_a_tenant_that_is_ahead(drive):
    driver = drive(max_num_seqs=2)
    occupy(driver, "first", 2, max_tokens=40)
    shares = driver.scheduler.shares
    shares.of("second", 1.0).service = shares.virtual_time + 1.5 * shares._batch_cost
    driver.add(8, max_tokens=4, tenant="second")
    driver.step(2)
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_a_sequence_of_better_priority_is_never_preempted_for_another_tenant(drive):
    driver = drive(max_num_seqs=2, policy="priority")
    occupy(driver, "greedy", 2, max_tokens=40, priority=-1)
    driver.add(8, max_tokens=4, tenant="modest")
    driver.step(2)
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_a_sequence_is_preempted_a_few_times_and_then_ends(drive):
    driver = drive(max_num_seqs=1, max_model_len=64)
    [greedy] = occupy(driver, "greedy", 1, max_tokens=50)
    sequence = driver.sequence(greedy)
    for index in range(3 * MAX_YIELDED):
        shares = driver.scheduler.shares
        shares.tenants["greedy"].service = shares.virtual_time + 1.5 * shares._batch_cost
        driver.add(4, max_tokens=2, tenant=f"modest {index}")
        driver.step(6)
    assert sequence.num_yielded == MAX_YIELDED
    driver.run()
    assert greedy in driver.ends


def test_a_preempted_sequence_waits_for_its_turn_and_is_not_preempted_again_at_once(drive):
    """It continues before newer requests of its own tenant, but not before those of other tenants."""
    driver = drive(max_num_seqs=1)
    [greedy] = occupy(driver, "greedy", 1, max_tokens=20)
    newer = driver.add(8, max_tokens=2, tenant="greedy")
    others = [driver.add(8, max_tokens=2, tenant=name) for name in ("b", "c")]
    order = []
    while driver.step():
        order += [stream for stream in driver.ends if stream not in order]
    assert order == [*others, greedy, newer]


def test_a_tenant_that_is_ahead_leaves_a_row_to_a_recent_one(drive):
    driver = drive(max_num_seqs=8)
    driver.add(8, max_tokens=1, tenant="modest")
    occupy(driver, "greedy", 6, max_tokens=40)
    greedy = [driver.add(8, max_tokens=40, tenant="greedy") for _ in range(3)]
    driver.step(2)
    assert [len(driver.tokens[stream]) > 0 for stream in greedy] == [True, False, False]
    modest = driver.add(8, max_tokens=4, tenant="modest")
    driver.step()
    assert driver.tokens[modest]
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_no_row_stays_reserved_for_absent_tenants(drive):
    driver = drive(max_num_seqs=8)
    driver.add(8, max_tokens=1, tenant="gone")
    for _ in range(60):
        driver.add(8, max_tokens=1, tenant="greedy")
    driver.run()
    occupy(driver, "greedy", 6, max_tokens=40)
    for _ in range(3):
        driver.add(8, max_tokens=40, tenant="greedy")
    driver.step(2)
    assert len(driver.scheduler.running) == 8
    driver.run()


@pytest.mark.parametrize(
    ("arrivals_per_row", "rows"), [(0.0, 0), (0.005, 0), (0.03, 1), (0.1, 1), (0.3, 2), (0.75, 8), (1.0, 8), (5.0, 8)]
)
def test_the_reserve_grows_with_the_arrivals_of_other_tenants_up_to_an_eighth(arrivals_per_row, rows):
    assert reserve_rows(arrivals_per_row, 64) == rows
    assert reserve_rows(arrivals_per_row, 7) == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_nothing_is_preempted_for_a_sequence_that_would_not_fit_even_then(drive, policy):
    driver = drive(num_blocks=32, block_size=4, max_num_seqs=8, max_model_len=128, policy=policy, prefix_caching=False)
    driver.add([7] * 60, max_tokens=8, tenant="other")  # half of the cache, and not ahead
    occupy(driver, "greedy", 3, max_tokens=12)
    large = driver.add([9] * 80, max_tokens=4, tenant="modest")
    driver.step(3)
    assert driver.scheduler.num_preemptions == 0
    assert not driver.tokens[large]
    driver.run()
    assert len(driver.tokens[large]) == 4


def test_blocks_shared_with_a_remaining_sequence_do_not_count_as_room(drive):
    driver = drive(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=64)
    story = [5] * 24
    occupy(driver, "greedy", 1, max_tokens=30)
    first = driver.add(story, max_tokens=12, tenant="modest")
    driver.step(2)
    shared = driver.add([*story, 6], max_tokens=12, tenant="greedy")  # finds six blocks of the first
    driver.step(2)
    assert driver.sequence(shared).num_cached_tokens == 24
    shares = driver.scheduler.shares
    shares.tenants["greedy"].service = shares.virtual_time + 1.5 * shares._batch_cost
    large = driver.add([8] * 36, max_tokens=2, tenant="third")
    driver.step()
    assert driver.scheduler.num_preemptions == 0, "its preemption would have made two blocks free, not eight"
    driver.run()
    assert {first, shared, large} <= driver.ends.keys()


def test_blocks_shared_with_a_sibling_are_needed_again_once_that_is_preempted(drive):
    driver = drive(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=64)
    story = [5] * 24
    first = driver.add(story, n=2, max_tokens=12, skip_reading_prefix_cache=True)
    driver.step(3)
    other = driver.add(story, max_tokens=12)
    driver.step(2)
    assert driver.sequence(other).num_cached_tokens >= 20, "it owns the prompt's blocks, too"
    driver.add([8] * 4, max_tokens=12)
    driver.step()
    earlier, sibling = driver.sequence(first), driver.sequence(first + 1)
    driver.scheduler.preempt(earlier)
    earlier.num_passed, sibling.passed = 1, earlier  # as if it had been admitted while the other did not fit
    driver.step()
    assert sibling.num_preemptions == 0, "its preemption would have made two blocks free, and five more would be needed"
    driver.run()


def test_blocks_shared_with_a_sibling_are_not_missing_while_another_preemption_suffices(drive):
    driver = drive(num_blocks=15, block_size=4, max_num_seqs=8, max_model_len=56)
    first = driver.add([5] * 24, n=2, max_tokens=12, skip_reading_prefix_cache=True)
    driver.step(4)
    late = driver.add([8] * 16, max_tokens=12)
    driver.step()
    earlier, sibling, last = (driver.sequence(stream) for stream in (first, first + 1, late))
    driver.scheduler.preempt(earlier)
    earlier.num_passed, sibling.passed, last.passed = 1, earlier, earlier  # as if both had been admitted past it
    driver.step()
    assert [each.num_preemptions for each in (earlier, sibling, last)] == [1, 0, 1]
    assert earlier.row >= 0, "it has started again"
    driver.run()


def test_sequences_with_computed_prompts_resume_in_every_row(drive):
    driver = drive(max_num_seqs=8)
    occupy(driver, "greedy", 8, max_tokens=40)
    driver.plans.clear()
    driver.answers.clear()
    driver.worker.epoch = 1
    driver.take(driver.engine.workers_replaced(1, driver.now, from_outside=True))
    driver.plan()
    assert len(driver.scheduler.running) == 8


def test_a_better_priority_takes_the_last_row_before_another_tenant_does(drive):
    driver = drive(max_num_seqs=8, policy="priority")
    occupy(driver, "greedy", 7, max_tokens=40)
    modest = driver.add(8, max_tokens=4, tenant="modest", priority=1)
    urgent = driver.add(8, max_tokens=4, tenant="greedy", priority=0)
    driver.step(2)
    assert driver.tokens[urgent]
    assert not driver.tokens[modest]
    driver.run()


@pytest.mark.parametrize("has_output", [False, True])
def test_tokens_count_as_cached_only_if_the_workers_that_computed_the_first_output_had_them(drive, has_output):
    driver = drive(max_num_batched_tokens=16, pipeline_depth=1)
    driver.add(20, max_tokens=1)
    driver.run()
    stream = driver.add(20, max_tokens=3)
    driver.plan()
    if has_output:
        driver.execute()
        driver.apply()
    driver.plans.clear()
    driver.take(driver.engine.workers_replaced(1, driver.now, from_outside=True))
    driver.worker = type(driver.worker)(driver.facts.num_blocks, 4, driver.facts.vocab_size, 1)
    driver.run()
    assert driver.firsts[stream].num_cached_tokens == (16 if has_output else 0)
