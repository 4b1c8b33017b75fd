"""Scheduling: which sequences run, which wait, and which are preempted."""

import msgspec
import pytest

from paged_serve.engine_core.scheduling import scheduler
from paged_serve.engine_core.scheduling.row_assigner import MAX_PASSERS_TRIED
from paged_serve.protocol.messages.message import (
    MAX_FRAME_BYTES,
    MAX_STEP_FRAME_BYTES,
    MAX_TOKENS_PER_MESSAGE,
    unpack_ids,
)
from paged_serve.protocol.messages.sampling_params import MAX_ALLOWED_TOKEN_IDS


def chunks(plan):
    return [(chunk.row, chunk.num_tokens) for chunk in plan.chunks]


def test_a_steady_step_is_a_message_of_a_few_bytes(drive):
    driver = drive(num_blocks=512, max_num_seqs=32, block_size=16)
    for _ in range(32):
        driver.add(20, max_tokens=30)
    driver.step(3)
    steady = driver.plan()
    assert (steady.new_rows, steady.extended_tables, steady.chunks) == ((), b"", ())
    assert len(msgspec.msgpack.encode(steady)) < 50


def test_prefills_are_cut_to_fill_the_budget_and_decodes_go_first(drive):
    driver = drive(max_num_batched_tokens=10, num_blocks=200)
    driver.add(8, max_tokens=20)
    assert chunks(driver.plan()) == [(0, 8)]
    driver.execute()
    driver.apply()
    driver.add([50] * 25, max_tokens=20)
    sizes = []
    for _ in range(3):
        plan = driver.plan()
        sizes.append(chunks(plan))
        driver.execute()
        driver.apply()
    assert sizes == [[(1, 9)], [(1, 9)], [(1, 7)]]


def test_no_step_exceeds_its_tokens(drive):
    driver = drive(max_num_batched_tokens=7, max_num_seqs=20, num_blocks=200)
    for length in (30, 1, 12, 3, 40, 5):
        driver.add(length, max_tokens=15)
    while not driver.engine.is_idle:
        if driver.plan() is not None:
            assert driver.scheduler.in_flight[-1].num_tokens <= 7
            driver.execute()
        driver.apply()


def test_requests_are_served_in_order_of_arrival(drive):
    driver = drive(max_num_seqs=1)
    streams = [driver.add([i + 1], max_tokens=2) for i in range(4)]
    driver.run()
    assert list(driver.ends) == streams


def test_a_lower_priority_value_is_served_first_and_ties_go_by_arrival(drive):
    driver = drive(max_num_seqs=1, policy="priority")
    low, first, second, high = (driver.add([9], max_tokens=2, priority=value) for value in (5, 0, 0, -3))
    driver.run()
    assert list(driver.ends) == [high, first, second, low]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_small_requests_pass_one_that_does_not_fit_a_bounded_number_of_times(drive, policy):
    driver = drive(num_blocks=10, block_size=4, policy=policy, max_model_len=36)
    driver.add([1] * 16, max_tokens=20)
    driver.scheduler.row_assigner.max_passes = 3
    large = driver.add([2] * 24, max_tokens=4)
    small = [driver.add([3 + index], max_tokens=1) for index in range(5)]
    driver.step(8)
    assert [stream in driver.ends for stream in small] == [True, True, True, False, False]
    assert driver.sequence(large).num_passed == 3
    driver.run()
    assert len(driver.tokens[large]) == 4
    assert list(driver.firsts).index(large) < list(driver.firsts).index(small[3])


def test_requests_that_passed_return_their_blocks_when_the_first_then_fits(drive):
    driver = drive(num_blocks=10, block_size=4, max_model_len=36, prefix_caching=False)
    first = driver.add([1] * 18, max_tokens=4)
    large = driver.add([2] * 28, max_tokens=4)
    passer = driver.add([3] * 8, max_tokens=20)
    while first not in driver.ends:
        driver.step()
    assert driver.tokens[passer]
    driver.step(2)
    assert driver.tokens[large], "it begins when the one before it has ended, as if none had passed"
    assert driver.sequence(passer).num_yielded == 1
    driver.run()
    assert len(driver.tokens[passer]) == 20
    assert driver.ends[passer].times.num_preemptions == 1


def test_a_request_that_fits_is_found_behind_others_and_across_tenants(drive):
    driver = drive(num_blocks=10, block_size=4, max_model_len=36)
    driver.add([1] * 16, max_tokens=20)
    for tenant in ("a", "b"):
        driver.add([2] * 24, max_tokens=4, tenant=tenant)
    small = driver.add([3], max_tokens=1, tenant="b")
    driver.step(2)
    assert small in driver.ends
    driver.run()


def test_a_step_examines_few_requests_of_a_long_queue(drive, monkeypatch):
    driver = drive(num_blocks=10, block_size=4, max_model_len=36, max_num_seqs=64)
    driver.add([1] * 16, max_tokens=20)
    for _ in range(100):
        driver.add([2] * 24, max_tokens=4)
    looked = []
    assigner = driver.scheduler.row_assigner
    monkeypatch.setattr(assigner, "find_room", lambda sequence, num_running: looked.append(sequence))
    driver.plan()
    assert len(looked) <= 1 + MAX_PASSERS_TRIED


def test_without_free_blocks_the_latest_sequence_is_preempted_and_the_first_never(drive):
    driver = drive(num_blocks=12, block_size=4, prefix_caching=False)
    streams = [driver.add(8, max_tokens=30) for _ in range(3)]
    driver.run()
    preempted = [driver.ends[stream].times.num_preemptions for stream in streams]
    assert preempted[0] == 0
    assert preempted[2] > 0
    assert all(len(driver.tokens[stream]) == 30 for stream in streams)


def test_the_sequence_of_worst_priority_is_preempted(drive):
    driver = drive(num_blocks=12, block_size=4, policy="priority", prefix_caching=False)
    worst = driver.add(8, max_tokens=30, priority=3)
    streams = [worst, *(driver.add(8, max_tokens=30, priority=value) for value in (1, 2))]
    driver.run()
    preempted = [driver.ends[stream].times.num_preemptions for stream in streams]
    assert preempted[0] > 0
    assert preempted[1] == 0


def test_no_more_sequences_are_preempted_than_necessary(drive):
    driver = drive(num_blocks=6, block_size=4, policy="priority", prefix_caching=False)
    for priority in (3, 2, 1):  # the last to come is the first in order; all need their third block in one step
        driver.add(3, max_tokens=9, priority=priority)
    driver.step(7)
    assert driver.scheduler.num_preemptions == 1
    assert [sequence.request.arrival for sequence in driver.scheduler.running] == [2, 1]


def test_nothing_is_admitted_in_a_step_that_preempted(drive):
    driver = drive(num_blocks=10, block_size=4, policy="priority", prefix_caching=False)
    driver.add(22, max_tokens=18, priority=5)
    driver.add(8, max_tokens=20, priority=0)
    driver.step(2)
    waiting = driver.add([70, 71], max_tokens=2, priority=1)
    while driver.scheduler.num_preemptions == 0:
        plan = driver.plan()
        assert not plan.new_rows
        driver.execute()
        driver.apply()
    assert driver.plan().new_rows[0].row == driver.sequence(waiting).row


def test_a_preempted_sequence_finds_its_own_blocks_again(drive):
    driver = drive(num_blocks=20, block_size=4)
    stream = driver.add(12, max_tokens=20)
    driver.step(6)
    driver.scheduler.preempt(driver.sequence(stream))
    driver.run()
    again = driver.sent[-1 - next(i for i, plan in enumerate(reversed(driver.sent)) if plan.new_rows)]
    assert again.new_rows[0].num_computed_tokens == 17  # 12 of the prompt, 5 of 6 of the output
    assert len(driver.tokens[stream]) == 20


def test_a_sequence_preempted_before_its_first_token_reports_its_first_admission(drive):
    driver = drive(block_size=4, max_num_batched_tokens=8)
    stream = driver.add(14, max_tokens=4)
    driver.step()
    driver.scheduler.preempt(driver.sequence(stream))
    driver.run()
    assert driver.sent[1].new_rows[0].num_computed_tokens == 8, "the test needs a sequence that finds its own blocks"
    assert driver.firsts[stream].num_cached_tokens == 0
    assert driver.ends[stream].times.num_preemptions == driver.scheduler.num_preemptions == 1


def test_a_tenant_pays_for_the_prompt_tokens_that_are_computed_for_it(drive):
    driver = drive(block_size=4)
    driver.add(9, max_tokens=1, tenant="a", weight=2.0)
    driver.run()
    tenant = driver.scheduler.shares.tenants["a"]
    assert tenant.service == 9 / 2
    driver.add(9, max_tokens=1, tenant="a", weight=2.0)  # two full blocks of it are found
    driver.run()
    assert tenant.service == 9 / 2 + 1 / 2


@pytest.mark.parametrize("params", [{}, {"allowed_token_ids": tuple(range(1, 30))}])
def test_a_step_carries_no_more_than_a_frame_holds(drive, monkeypatch, params):
    largest_row = 4 * MAX_TOKENS_PER_MESSAGE + MAX_FRAME_BYTES  # tokens; parameters that came in one frame
    assert scheduler.MAX_CARRIED_BYTES + largest_row < MAX_STEP_FRAME_BYTES
    monkeypatch.setattr(scheduler, "MAX_CARRIED_BYTES", 100)
    driver = drive()
    for _ in range(5):
        driver.add(4 if params else 16, max_tokens=2, **params)
    assert len(driver.plan().new_rows) == 2
    driver.execute()
    driver.run()
    assert len(driver.ends) == 5


def test_many_sequences_with_long_rules_take_several_steps_instead_of_a_frame_too_large(drive):
    driver = drive(max_num_seqs=128, num_blocks=1024)
    driver.add(4, n=128, seed=1, max_tokens=2, allowed_token_ids=(70_000,) * MAX_ALLOWED_TOKEN_IDS)
    num_rows = 0
    while num_rows < 128:
        plan = driver.plan()
        assert len(msgspec.msgpack.encode(plan)) < MAX_STEP_FRAME_BYTES
        num_rows += len(plan.new_rows)
        driver.execute()
        driver.apply()


def test_a_row_leaves_the_set_with_the_plan_after_its_last_token(drive):
    driver = drive(pipeline_depth=3)
    driver.add(4, max_tokens=3)
    driver.add(4, max_tokens=9)
    for _ in range(3):
        driver.plan()
    assert unpack_ids(driver.sent[1].decode_joins).tolist() == [0, 1]
    for _ in range(3):
        driver.execute()
        driver.apply()
    driver.plan()
    assert unpack_ids(driver.sent[3].decode_leaves).tolist() == [0]
    driver.execute()
    driver.run()
    assert driver.engine.counters.generation_tokens == 3 + 9


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_bounds_the_steps_in_flight_and_changes_no_token(drive, depth):
    driver = drive(pipeline_depth=depth, eos=(0,), vocab_size=12)
    streams = [driver.add(5, max_tokens=30, ignore_eos=False, seed=seed) for seed in range(8)]
    plans = 0
    while driver.plan() is not None:
        plans += 1
    assert plans == depth
    while driver.plans:
        driver.execute()
    driver.run()
    reference = []
    for seed in range(8):
        alone = drive(eos=(0,), vocab_size=12)
        stream = alone.add(5, max_tokens=30, ignore_eos=False, seed=seed)
        reference.append(alone.run().tokens[stream])
    assert [driver.tokens[stream] for stream in streams] == reference


def test_the_cost_of_a_steady_plan_does_not_grow_with_the_rows(drive):
    """Counts Python calls instead of time: rows without changes are not visited."""
    import sys

    def calls(num_rows):
        driver = drive(num_blocks=4096, block_size=16, max_num_seqs=num_rows, max_num_batched_tokens=8192)
        for _ in range(num_rows):
            driver.add(17, max_tokens=40)
        driver.step(2)
        count = 0

        def profile(_frame, event, _argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        plan = driver.engine.plan(0.0)
        sys.setprofile(None)
        assert not plan.extended_tables
        return count

    assert calls(8) == calls(128)
