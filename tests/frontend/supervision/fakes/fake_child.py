"""A child process that obeys, or misbehaves as the environment variable FAKE_CHILDREN specifies.

FAKE_CHILDREN is JSON: role -> behaviour, or role -> list of behaviours by epoch (the last one is repeated).
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.control import (
    DescribeState,
    Drain,
    Drained,
    HasWorkers,
    IsolatesCandidates,
    IsolationRecorded,
    Progress,
    Promote,
    Ready,
    State,
    Stop,
    WorkersLost,
    WorkersReplaced,
)
from paged_serve.protocol.process.lifecycle import ChildProcess, run_child


def behaviour_of(child: ChildProcess) -> str:
    behaviours = json.loads(os.environ.get("FAKE_CHILDREN", "{}")).get(child.role, "obey")
    return behaviours if isinstance(behaviours, str) else behaviours[min(child.epoch, len(behaviours) - 1)]


def main(role: str) -> None:
    if behaviour_at_spawn(role) == "slow":
        time.sleep(0.7)
    run_child(role, body)


def behaviour_at_spawn(role: str) -> str:
    return str(json.loads(os.environ.get("FAKE_CHILDREN", "{}")).get(role, "obey"))


def body(child: ChildProcess) -> None:
    behaviour = behaviour_of(child)
    if behaviour == "refuse late":
        time.sleep(0.3)
    if behaviour in ("refuse", "refuse late"):
        raise ConfigError("this machine has no such device; try --device cpu")
    child.control.send(Progress("loading", 1, 2))
    if behaviour == "never ready":
        time.sleep(600)
    if behaviour == "has a child":
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    failures = str([(failure.epoch, failure.turn) for failure in child.core_failures])
    facts = {f"{child.role}-failures": failures, f"{child.role}-predecessor-failed": str(child.predecessor_failed)}
    child.control.send(Ready({child.role: f"epoch {child.epoch}", **facts}))
    if behaviour == "loses workers":
        time.sleep(0.25)
        child.control.send(WorkersLost(child.epoch, "rank 0: whatever"))
    if behaviour == "crash":
        raise RuntimeError("out of luck")
    if behaviour == "exit":
        sys.stderr.flush()
        os._exit(7)
    if behaviour == "faults in turn 2 without workers":
        child.control.send(IsolatesCandidates(2))
        child.control.send(HasWorkers(False))
        wait_until_read(child, 2)
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour.startswith("faults"):
        wait_until_read(child, int(behaviour.split()[-1]) if "in turn" in behaviour else 0)
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour in ("stuck in C", "silent"):
        wait_until_read(child)
        ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the interpreter's lock
    obey(child, behaviour)


def wait_until_read(child: ChildProcess, turn: int = 0) -> None:
    """Wait until the supervisor has read all messages so far: it answers the one that is sent here."""
    child.control.send(IsolatesCandidates(turn))
    while not isinstance(child.control.receive(timeout_s=1.0), IsolationRecorded):
        pass


def obey(child: ChildProcess, behaviour: str) -> None:
    while behaviour == "deaf" or not child.stop_requested:
        match child.control.receive(timeout_s=0.05):
            case Stop():
                child.stop_requested = True
            case Drain() if behaviour != "never drained":
                child.control.send(Drained())
            case WorkersReplaced(epoch=epoch, from_outside=from_outside):
                child.control.send(Ready({"workers": f"epoch {epoch}", "from-outside": str(from_outside)}))
            case Promote(epoch=epoch):
                child.control.send(Ready({"worker": f"epoch {epoch}, once a standby worker"}))
            case DescribeState():
                child.control.send(State(b'{"audit": "", "blocks": {}, "running": []}'))
            case _:
                pass
        child.heartbeat(time.monotonic(), 0)
