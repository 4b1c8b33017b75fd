"""A halted process is continued; one halted only briefly or by a debugger is not."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from paged_serve.protocol.process.supervisor_watch import WAKE_AFTER_S, SupervisorWatch

PTRACE_ATTACH, PTRACE_DETACH = 16, 17


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def wait_until(process, status, *, isnt=False):
    deadline = time.monotonic() + 60
    while (process.status() == status) is isnt:
        assert time.monotonic() < deadline, process.status()
        time.sleep(0.001)


def halt(process):
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(process, psutil.STATUS_STOPPED)


def test_a_halted_process_is_continued_once_it_was_halted_for_a_second(sleeper):
    watch = SupervisorWatch(sleeper.pid, wake=True)
    halt(sleeper)
    watch.check(10.0)
    watch.check(10.0 + WAKE_AFTER_S - 0.01)
    assert sleeper.status() == psutil.STATUS_STOPPED
    watch.check(10.0 + WAKE_AFTER_S)
    wait_until(sleeper, psutil.STATUS_STOPPED, isnt=True)


def test_two_halts_are_not_taken_for_one(sleeper):
    watch = SupervisorWatch(sleeper.pid, wake=True)
    halt(sleeper)
    watch.check(10.0)
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_until(sleeper, psutil.STATUS_STOPPED, isnt=True)
    watch.check(10.5)
    halt(sleeper)
    watch.check(11.5)
    assert sleeper.status() == psutil.STATUS_STOPPED


def test_a_halted_process_is_left_alone_when_waking_is_off(sleeper):
    watch = SupervisorWatch(sleeper.pid, wake=False)
    halt(sleeper)
    for now in range(10):
        watch.check(float(now))
    assert sleeper.status() == psutil.STATUS_STOPPED


def test_a_debuggers_halt_is_left_alone(sleeper):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, sleeper.pid, None, None):
        pytest.skip(f"no debugger may check here: {os.strerror(ctypes.get_errno())}")
    wait_until(sleeper, psutil.STATUS_TRACING_STOP)
    watch = SupervisorWatch(sleeper.pid, wake=True)
    for now in range(10):
        watch.check(float(now))
    assert sleeper.status() == psutil.STATUS_TRACING_STOP
    os.waitpid(sleeper.pid, 0x40000000)  # __WALL
    assert not libc.ptrace(PTRACE_DETACH, sleeper.pid, None, None)


def test_a_process_that_has_ended_is_left_alone(sleeper):
    watch = SupervisorWatch(sleeper.pid, wake=True)
    sleeper.kill()
    watch.check(1.0)
    watch.check(100.0)
