"""Processes that the kernel refuses to start: the others wait for them, but not for ever."""

import errno
import os
import signal
import subprocess
import time

import pytest

from paged_serve.frontend.supervision.processes import child as child_module
from paged_serve.frontend.supervision.processes import process_table
from paged_serve.frontend.supervision.processes.child import MODULES, Child, StartInfo

from .running_supervisor import TWO_RANKS, WITHIN_S, supervisors

start = pytest.fixture(supervisors)


class TooManyProcesses:
    """While it is full, the kernel refuses to start a process."""

    def __init__(self, monkeypatch):
        self.is_full = False
        self._popen = subprocess.Popen
        monkeypatch.setattr(child_module.subprocess, "Popen", self.start)

    def start(self, *command, **options):
        if self.is_full:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return self._popen(*command, **options)


def test_a_process_that_the_kernel_cannot_start_now_is_started_later(start, monkeypatch, caplog):
    running, processes = start(TWO_RANKS), TooManyProcesses(monkeypatch)
    assert running.ready.wait(WITHIN_S)
    before, processes.is_full = running.supervisor.pids, True
    os.kill(before["worker 0"], signal.SIGKILL)
    deadline = time.monotonic() + WITHIN_S
    while caplog.text.count("cannot start") < 2:
        assert running.thread.is_alive(), "the supervisor has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    processes.is_full = False
    running.pids_after_change(before, {"worker 0", "worker 1"})
    running.wait_for_facts(worker="epoch 1", workers="epoch 1")
    assert caplog.text.count("cannot start") == 2, "once for each worker"


def test_a_process_that_the_kernel_cannot_start_for_long_ends_the_service(start, monkeypatch):
    monkeypatch.setattr(process_table, "START_WITHIN_S", 0.5)
    running, processes = start(), TooManyProcesses(monkeypatch)
    assert running.ready.wait(WITHIN_S)
    processes.is_full = True
    os.kill(running.supervisor.pids["worker 0"], signal.SIGKILL)
    assert running.ended() == 1
    assert running.supervisor.reason.startswith("cannot start worker 0: [Errno 11] Resource temporarily unavailable")


def test_a_process_without_a_handle_is_ended_and_leaves_no_open_file(run_dir, monkeypatch):
    def refuse(pid):
        started.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    started = []
    monkeypatch.setattr(child_module.os, "pidfd_open", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Too many"):
        Child.spawn("worker", 0, 0, StartInfo(run_dir, dict(os.environ), -1, MODULES), time.monotonic())
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
