"""Standby workers of a supervisor: they replace lost workers, and are replaced themselves."""

import os
import signal
import time

import pytest

from paged_serve.frontend.supervision.processes.child import ChildState
from paged_serve.frontend.supervision.processes.restart_budget import RestartBudget

from .running_supervisor import MODULES, TWO_RANKS, WITHIN_S, Running, supervisors

start = pytest.fixture(supervisors)


@pytest.fixture
def start_with_standbys(start, monkeypatch):
    """Standby workers are started as soon as the service is ready."""
    monkeypatch.setitem(MODULES, "standby", "fake_standby")
    monkeypatch.setattr("paged_serve.frontend.supervision.processes.standby_workers.SETTLED_S", 0.0)
    budget = RestartBudget(limit=5, window_s=3600.0)  # on a busy machine few processes start in a minute
    monkeypatch.setattr("paged_serve.frontend.supervision.processes.standby_workers.RestartBudget", lambda **_: budget)
    return start


def warm_standbys(running: Running) -> dict[str, int]:
    """The process ids, once there is a warm standby worker for each of two ranks."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        standbys = [child for child in list(running.supervisor._processes.living.values()) if child.role == "standby"]
        if len(standbys) == 2 and all(standby.state is ChildState.READY for standby in standbys):
            return running.supervisor.pids
        time.sleep(0.01)
    raise AssertionError("there are no standby workers")


def test_warm_standbys_become_the_workers_and_new_standbys_start(start_with_standbys):
    running = start_with_standbys(TWO_RANKS)
    before = warm_standbys(running)
    os.kill(before["worker 1"], signal.SIGKILL)
    after = running.pids_after_change(before, {"worker 0", "worker 1"})
    assert (after["worker 0"], after["worker 1"]) == (before["standby 0"], before["standby 1"])
    running.wait_for_facts(worker="epoch 1, once a standby worker", workers="epoch 1")
    assert warm_standbys(running).items() >= {(n, after[n]) for n in ("worker 0", "worker 1", "engine-core")}


def test_a_standby_that_dies_is_replaced_and_no_other_is(start_with_standbys):
    running = start_with_standbys(TWO_RANKS)
    before = warm_standbys(running)
    os.kill(before["standby 0"], signal.SIGKILL)
    running.pids_after_change(before, {"standby 0"})
    after = warm_standbys(running)
    assert {name for name in before if before[name] != after[name]} == {"standby 0"}


def test_a_halted_standby_is_replaced_and_no_other_is(start_with_standbys):
    running = start_with_standbys(TWO_RANKS)
    before = warm_standbys(running)
    os.kill(before["standby 1"], signal.SIGSTOP)
    running.pids_after_change(before, {"standby 1"})
    after = warm_standbys(running)
    assert {name for name in before if before[name] != after[name]} == {"standby 1"}


@pytest.mark.parametrize(
    "behaviour", ["crash", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("refuse", "exit"))]
)
def test_standbys_that_never_get_warm_are_abandoned_and_the_service_continues(start_with_standbys, behaviour, caplog):
    running = start_with_standbys(standby=behaviour)
    assert running.ready.wait(WITHIN_S)
    before = running.supervisor.pids
    deadline = time.monotonic() + WITHIN_S
    while "no standby workers from here on" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after = running.supervisor.pids
    assert {name: after[name] for name in before if "standby" not in name}.items() <= before.items()
    os.kill(after["worker 0"], signal.SIGKILL)
    running.pids_after_change(after, {"worker 0"})
