"""Children that are silent: which of them hang."""

import os
import time
from pathlib import Path

import pytest
import zmq

from paged_serve.frontend.supervision.processes.child import ChildState
from paged_serve.frontend.supervision.processes.hang_detector import (
    ASLEEP_S,
    HALTED_S,
    HANG_S,
    HangDetector,
)
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.process.lifeline import RECEIVING_THREADS, is_at_work

from .fake_child_state import FakeChild
from .running_supervisor import WITHIN_S

LIMITS = ParallelConfig(step_timeout_s=300.0, load_timeout_s=1800.0)


def found(child: FakeChild, silence_s: float) -> bool:
    detector = HangDetector(LIMITS, now=0.0)
    times = [n / 4 for n in range(int(4 * silence_s))]  # or the detector would assume that it slept
    for now in times:
        if detector.find_hanging([child], now):
            return True
    return detector.find_hanging([child], silence_s) == [child]


@pytest.mark.parametrize(
    ("role", "state", "max_silence_s"),
    [
        ("frontend", ChildState.READY, HANG_S),
        ("frontend", ChildState.DRAINED, HANG_S),
        ("engine-core", ChildState.READY, HANG_S),
        ("worker", ChildState.READY, 300.0),
    ],
)
def test_a_stuck_loop_is_detected(role, state, max_silence_s):
    assert not found(FakeChild(role, state), max_silence_s - 0.1)
    assert found(FakeChild(role, state), max_silence_s + 0.1)


@pytest.mark.parametrize("role", ["frontend", "engine-core", "standby"])
def test_a_child_whose_threads_all_sleep_is_detected_sooner(role):
    assert not found(FakeChild(role, ChildState.READY, at_work=False), ASLEEP_S - 0.1)
    assert found(FakeChild(role, ChildState.READY, at_work=False), ASLEEP_S + 0.1)


def test_a_child_that_sleeps_again_after_it_waited_for_a_core_is_not_lost():
    """It was silent for want of a core; its heartbeat arrived after the messages of this look were read."""
    child = FakeChild("engine-core", ChildState.READY)
    detector = HangDetector(LIMITS, now=1.75)
    assert detector.find_hanging([child], 2.0) == []
    child.at_work = False
    assert detector.find_hanging([child], 2.25) == []
    child.last_heard = 2.25
    assert detector.find_hanging([child], 2.5) == []
    assert detector.find_hanging([child], 3.0) == []
    assert detector.find_hanging([child], 4.0) == [child]


def test_a_child_sleeps_for_good_only_if_its_last_heartbeat_cannot_be_on_its_way():
    """The supervisor's thread that reads sockets waits for a core while its other thread looks twice."""
    receiving = [True, True, False, False]
    child = FakeChild("engine-core", ChildState.READY, at_work=False)
    detector = HangDetector(LIMITS, now=1.5, is_receiving=lambda: receiving.pop(0))
    assert [detector.find_hanging([child], now) for now in (2.0, 2.01, 2.02, 2.03)] == [[], [], [], [child]]


def test_a_worker_may_be_silent_during_a_step():
    assert not found(FakeChild("worker", ChildState.READY, at_work=False), 100.0)


@pytest.mark.parametrize("state", [ChildState.SPAWNED, ChildState.GREETED])
def test_a_child_that_loads_is_detected_when_it_makes_no_progress_for_long(state):
    child = FakeChild("worker", state, at_work=False)
    assert not found(child, 1799.9)
    assert found(child, 1800.1)
    assert "--load-timeout (1800)" in child.failure


@pytest.mark.parametrize("state", [ChildState.SPAWNED, ChildState.GREETED, ChildState.READY])
def test_a_halted_process_is_detected_soon_in_every_state(state):
    assert not found(FakeChild("worker", state, halted=True), HALTED_S - 0.1)
    assert found(FakeChild("worker", state, halted=True), HALTED_S + 0.1)


def test_a_dead_child_does_not_count_as_silent():
    assert not found(FakeChild("worker", ChildState.DEAD, halted=True), 1000.0)


def test_after_a_pause_of_the_supervisor_each_child_gets_time_to_report():
    child = FakeChild("frontend", ChildState.READY)
    detector = HangDetector(LIMITS, now=0.0)
    assert detector.find_hanging([child], 1000.0) == []
    assert child.last_heard == 1000.0


def names_of_threads() -> list[str]:
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]


def test_libzmqs_receiving_threads_have_the_name_that_is_looked_for():
    with zmq.Context() as context, context.socket(zmq.PAIR):
        deadline = time.monotonic() + WITHIN_S
        while not any(name.startswith(RECEIVING_THREADS) for name in names_of_threads()):  # a thread names itself
            assert time.monotonic() < deadline, names_of_threads()


def test_only_threads_of_a_name_count():
    name = Path("/proc/thread-self/comm").read_text().strip()
    assert is_at_work(os.getpid(), name), "this thread runs"
    assert not is_at_work(os.getpid(), name + "?")
