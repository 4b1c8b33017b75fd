import dataclasses
import itertools

import msgspec
import pytest

from paged_serve.engine_core.worker_group import GROUP_TRANSITIONS, GroupEvent, GroupState, WorkerGroup
from paged_serve.protocol.handshake import handshake_hello
from paged_serve.protocol.state_machine import IllegalTransition
from paged_serve.protocol.worker import LoadProgress, WorkerReady


def ready(rank, num_blocks):
    return WorkerReady(rank, num_blocks, 1024, 256, 1000, (0,), "float32", "cpu", 10, 0.5)


def hello(rank, epoch=0):
    return handshake_hello("worker", rank, epoch)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(GroupState, GroupEvent)))
def test_an_illegal_event_raises_and_changes_nothing(state, event):
    group = WorkerGroup(2, 1.0, 0, state)
    before = dataclasses.replace(group)
    if (state, event) in GROUP_TRANSITIONS:
        group._fire(event)
        assert group.state is GROUP_TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition):
            group._fire(event)
        assert group == before


def test_ranks_become_ready_together():
    group = WorkerGroup(2, 1.0)
    assert group.admit(b"a", hello(0, 3)) == group.admit(b"b", hello(1, 3)) == ""
    assert group.epoch == 3
    assert not group.load(ready(1, 40))
    assert group.load(ready(0, 50))
    assert group.num_blocks == 40
    assert not group.allocate(0)
    assert group.allocate(1)
    assert group.state is GroupState.READY


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (hello(2), "rank 2 in a group of 2"),
        (hello(0), "rank 0 of group 0 is here already"),
        (hello(1, epoch=4), "group 0 is in use"),
        (msgspec.structs.replace(hello(1), role="client"), "only workers"),
        (msgspec.structs.replace(hello(1), protocol_version=99), "protocol version 99"),
    ],
)
def test_who_does_not_belong_is_told_why(message, reason):
    group = WorkerGroup(2, 1.0)
    group.admit(b"a", hello(0))
    assert reason in group.admit(b"x", message)
    assert group.rank_of(b"x") is None


def test_a_rank_may_say_hello_again():
    group = WorkerGroup(1, 1.0)
    assert group.admit(b"a", hello(0)) == group.admit(b"a", hello(0)) == ""


def test_progress_is_one_bar_over_all_ranks():
    group = WorkerGroup(2, 1.0)
    group.progress(LoadProgress(0, 5, 10))
    assert group.progress(LoadProgress(1, 1, 20)) == (6, 30)
    assert group.progress(LoadProgress(0, 10, 10)) == (11, 30)


def test_a_steps_time_begins_when_the_one_before_was_answered():
    group = WorkerGroup(1, 10.0, 0, GroupState.READY)
    assert group.deadline == float("inf")
    group.step_sent(100.0)
    group.step_sent(101.0)
    assert group.deadline == 110.0
    group.step_answered(105.0)
    assert group.deadline == 115.0
    group.step_answered(106.0)
    assert group.deadline == float("inf")


def test_a_lost_group_is_not_waited_for():
    group = WorkerGroup(1, 10.0, 0, GroupState.READY)
    group.step_sent(100.0)
    group.fail("it died")
    assert group.deadline == float("inf")
