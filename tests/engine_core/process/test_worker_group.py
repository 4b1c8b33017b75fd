import dataclasses
import itertools

import msgspec
import pytest

from paged_serve.engine_core.process.step_time_limits import MIN_STEPS, StepTimeLimits
from paged_serve.engine_core.process.worker_group import GROUP_TRANSITIONS, GroupEvent, GroupState, WorkerGroup
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.loading.startup import KVGroup, LoadProgress, WorkerReady
from paged_serve.protocol.state_machine import IllegalTransition


def ready(rank, num_blocks):
    return WorkerReady(rank, num_blocks, 16, 1024, 256, 1000, (0,), "float32", "cpu", 10, 0.5)


def hello(rank, epoch=0):
    return handshake_hello("worker", rank, epoch)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(GroupState, GroupEvent)))
def test_an_illegal_event_raises_and_changes_nothing(state, event):
    group = WorkerGroup(2, StepTimeLimits(1.0), 0, state)
    before = dataclasses.replace(group)
    if (state, event) in GROUP_TRANSITIONS:
        group._fire(event)
        assert group.state is GROUP_TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition):
            group._fire(event)
        assert group == before


def test_ranks_become_ready_together():
    group = WorkerGroup(2, StepTimeLimits(1.0))
    assert group.admit(b"a", hello(0, 3)) == group.admit(b"b", hello(1, 3)) == ""
    assert group.epoch == 3
    assert not group.load(ready(1, 40))
    assert group.load(ready(0, 50))
    assert group.num_blocks == 40
    assert not group.allocate(0)
    assert group.allocate(1)
    assert group.state is GroupState.READY


def test_a_rank_with_other_kv_groups_is_refused():
    group = WorkerGroup(2, StepTimeLimits(1.0))
    group.load(ready(0, 40))
    other = msgspec.structs.replace(ready(1, 40), kv_groups=(KVGroup(8), KVGroup()))
    assert "not those of the other ranks" in group.protocol_error(1, other)
    assert group.protocol_error(1, ready(1, 50)) == ""
    other = msgspec.structs.replace(ready(1, 40), block_size=32)
    assert group.protocol_error(1, other) == "its blocks of 32 tokens are not those of the other ranks"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (hello(2), "rank 2 in a group of 2"),
        (hello(0), "rank 0 of group 0 is already connected"),
        (hello(1, epoch=4), "group 0 is in use"),
        (msgspec.structs.replace(hello(1), role="client"), "only workers"),
        (msgspec.structs.replace(hello(1), protocol_version=99), "protocol version 99"),
    ],
)
def test_a_worker_that_does_not_belong_is_refused_with_the_reason(message, reason):
    group = WorkerGroup(2, StepTimeLimits(1.0))
    group.admit(b"a", hello(0))
    assert reason in group.admit(b"x", message)
    assert group.rank_of(b"x") is None


def test_a_rank_may_send_hello_again():
    group = WorkerGroup(1, StepTimeLimits(1.0))
    assert group.admit(b"a", hello(0)) == group.admit(b"a", hello(0)) == ""


def test_progress_is_one_bar_over_all_ranks():
    group = WorkerGroup(2, StepTimeLimits(1.0))
    group.progress(LoadProgress(0, 5, 10))
    assert group.progress(LoadProgress(1, 1, 20)) == (6, 30)
    assert group.progress(LoadProgress(0, 10, 10)) == (11, 30)


def test_progress_over_kernels_does_not_count_bytes_of_weights():
    group = WorkerGroup(2, 1.0)
    group.progress(LoadProgress(0, 500, 500))
    group.progress(LoadProgress(1, 100, 500))
    assert group.progress(LoadProgress(0, 1, 8, "kernels")) == (1, 8)
    assert group.progress(LoadProgress(1, 500, 500)) == (500, 500)
    assert group.progress(LoadProgress(1, 2, 8, "kernels")) == (3, 16)


def test_a_steps_time_begins_with_the_result_of_the_one_before():
    group = WorkerGroup(1, StepTimeLimits(10.0), 0, GroupState.READY)
    assert group.deadline == float("inf")
    group.step_sent(1, 8, 100.0)
    group.step_sent(1, 8, 101.0)
    assert group.deadline == 110.0
    group.step_answered(105.0)
    assert group.deadline == 115.0
    group.step_answered(106.0)
    assert group.deadline == float("inf")


def test_a_lost_group_has_no_deadline():
    group = WorkerGroup(1, StepTimeLimits(10.0), 0, GroupState.READY)
    group.step_sent(1, 8, 100.0)
    group.fail("it died")
    assert group.deadline == float("inf")


def group_with_step_times(step_s: float) -> WorkerGroup:
    group = WorkerGroup(1, StepTimeLimits(300.0), 0, GroupState.READY)
    for n in range(MIN_STEPS):
        group.step_sent(1, 8, now=float(n))
        group.step_answered(n + step_s)
    return group


def test_a_late_step_is_reported_with_the_figures():
    group = group_with_step_times(0.001)
    group.step_sent(1, 8, now=1000.0)
    assert group.deadline == 1001.0
    assert group.lateness(1001.25) == (
        "no answer to a step of 8 tokens for 1.25 s; 99.9 % of such steps take at most 0.00116 s"
    )


def test_busy_workers_get_more_time_once():
    group = group_with_step_times(0.001)
    group.step_sent(1, 8, now=1000.0)
    group.step_sent(1, 8, now=1000.0)
    assert group.extend_deadline()
    assert group.deadline == 1008.0
    assert not group.extend_deadline()
    group.step_answered(1000.001)
    assert group.deadline == 1001.001, "the next step has what every step has"
    assert group.extend_deadline()


def test_time_in_which_the_core_did_not_run_does_not_count():
    group = group_with_step_times(0.001)
    group.step_sent(1, 8, now=1000.0)
    group.shift_deadline(20.0)
    assert group.deadline == 1021.0


def test_no_step_gets_more_than_the_configured_time():
    group = WorkerGroup(1, StepTimeLimits(10.0), 0, GroupState.READY)
    group.step_sent(1, 8, now=100.0)
    assert group.extend_deadline()
    assert group.deadline == 110.0
