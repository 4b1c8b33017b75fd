"""Decides whether a request may have caused a core's death, and counts the restarts that this costs."""

import os
import signal

import msgspec
import pytest

from paged_serve.frontend.supervision.shutdown import Phase
from paged_serve.protocol.messages.config import ServerConfig

from .running_supervisor import CONFIG, WITHIN_S, supervisors

start = pytest.fixture(supervisors)


@pytest.mark.parametrize(
    ("behaviour", "turn"),
    [
        ("crash", 0),
        ("silent", 0),
        ("faults in turn 3", 3),
        *(pytest.param(behaviour, 0, marks=pytest.mark.nightly) for behaviour in ("faults", "exit")),
    ],
)
def test_a_core_crash_may_be_attributed_to_a_request(start, behaviour, turn):
    running = start(engine_core=[behaviour, "obey"])
    running.wait_for_facts(engine_core="epoch 1", engine_core_failures=f"[(0, {turn})]")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGSTOP]
)
def test_an_external_kill_of_a_core_is_not_attributed_to_a_request(start, number):
    running = start()
    assert running.ready.wait(WITHIN_S)
    os.kill(running.supervisor.pids["engine-core"], number)
    running.wait_for_facts(engine_core="epoch 1", engine_core_failures="[]")


def test_a_core_crash_while_it_has_no_workers_is_not_attributed_to_a_request(start):
    """Even within an isolation turn: nothing is computed then."""
    running = start(engine_core=["faults in turn 2 without workers", "obey"])
    running.wait_for_facts(engine_core="epoch 1", engine_core_failures="[]")


def test_restarts_that_find_a_core_poison_request_do_not_count(start):
    deadly = ["faults", "faults in turn 3", "faults in turn 1"] * 2
    running = start(engine_core=[*deadly, "obey"])  # six losses; the budget has five
    running.wait_for_facts(engine_core="epoch 6")
    assert len(running.supervisor.facts()["engine-core-failures"].split("), (")) == 6


def test_cores_that_die_whatever_they_isolate_end_the_service(start):
    running = start(engine_core=["faults", "faults in turn 1"])
    assert running.ended() == 1
    assert "gave up after 5 restarts" in running.supervisor.reason


def test_a_core_that_dies_during_its_drain_is_replaced_and_drained_like_the_first(start):
    running = start(msgspec.structs.replace(CONFIG, server=ServerConfig(port=0)), engine_core=["never drained", "obey"])
    assert running.ready.wait(WITHIN_S)
    running.supervisor.drain()
    running.wait_for_phase(Phase.DRAINING_ENGINE)
    os.kill(running.supervisor.pids["engine-core"], signal.SIGKILL)
    assert running.ended() == 0
    assert running.supervisor.facts()["engine-core"] == "epoch 1"
