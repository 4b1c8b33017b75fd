"""The supervisor as a process: signals, SIGKILL to itself, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from paged_serve.protocol.messages.config import Config, ServerConfig

FAKES = Path(__file__).parent / "fakes"
ROOT = Path(__file__).parents[3]
CONFIG = Config(server=ServerConfig(port=0, drain_timeout_s=600.0))
SOON_S = 200.0  # far below the end of a drain, and far above the delay of a busy machine


@dataclass
class Started:
    process: subprocess.Popen[str]
    run_dir: str
    children: list[psutil.Process]

    def kill_and_time(self, number: int) -> float:
        """Signal the supervisor; returns the seconds until its last process is gone."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(SOON_S + 30)
        while any(is_alive(child) for child in self.children):
            assert time.monotonic() < began + SOON_S + 30
            time.sleep(0.001)
        return time.monotonic() - began


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; its new parent has not reaped it yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def process_of(pid: int) -> psutil.Process | None:
    """The process; None if it has ended and was reaped, like a child that exits at once."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def is_armed(process: psutil.Process) -> bool:
    """Whether it has arranged to end with its parent, as a child does before it handles SIGTERM; True if gone."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    fields = dict(line.split(":\t") for line in lines)
    if "SigCgt" not in fields or fields["State"].startswith("Z"):
        return True
    return bool((int(fields["SigCgt"], 16) | int(fields["SigIgn"], 16)) >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[..., Started]]:
    processes, all_children = [], []
    temporary = tmp_path_factory.mktemp("t")  # a short path, because it contains sockets

    def start(config: Config = CONFIG, *, ignored: int = 0, blocked: int = 0, **behaviours: Any) -> Started:
        def inherit() -> None:
            if ignored:
                signal.signal(ignored, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {blocked} - {0})

        process = subprocess.Popen(
            [sys.executable, str(FAKES / "supervise.py"), msgspec.json.encode(config).decode()],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{FAKES}",
                "TMPDIR": str(temporary),
                "FAKE_CHILDREN": json.dumps({k.replace("_", "-"): v for k, v in behaviours.items()}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=inherit if ignored or blocked else None,
        )
        processes.append(process)
        printed = json.loads(process.stdout.readline() or "{}")
        if not printed:
            process.wait(SOON_S)
            return Started(process, "", [])
        children = [child for pid in printed["pids"].values() if (child := process_of(pid))]
        all_children.extend(children)
        while not all(map(is_armed, children)):  # a fake core is ready without its workers
            time.sleep(0.01)
        return Started(process, printed["run_dir"], children)

    yield start
    for process in processes:
        process.kill()
    for child in filter(is_alive, all_children):  # otherwise the pipes that are read here stay open
        child.kill()
    for process in processes:
        process.communicate(timeout=SOON_S)


@pytest.mark.parametrize("behaviour", ["obey", "deaf", "stuck in C"])
def test_nothing_outlives_a_killed_supervisor(start, behaviour):
    started = start(engine_core=behaviour, worker=behaviour, frontend=behaviour)
    time.sleep(0.3)  # until the children that get stuck are stuck
    assert started.kill_and_time(signal.SIGKILL) < SOON_S


def test_nothing_outlives_a_killed_supervisor_even_when_halted(start):
    started = start()
    for child in started.children:
        os.kill(child.pid, signal.SIGSTOP)
    assert started.kill_and_time(signal.SIGKILL) < SOON_S


def test_the_next_start_clears_what_a_killed_supervisor_left(start):
    killed = start()
    killed.kill_and_time(signal.SIGKILL)
    assert os.path.exists(killed.run_dir)
    start()
    assert not os.path.exists(killed.run_dir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_exit_code_0_and_nothing_left(start, number):
    started = start()
    assert started.kill_and_time(number) < SOON_S
    assert started.process.returncode == 0
    assert not os.path.exists(started.run_dir)


def test_an_interrupt_ends_a_server_that_a_script_has_started_in_the_background(start):
    started = start(ignored=signal.SIGINT)  # as shells do for `&`
    assert started.kill_and_time(signal.SIGINT) < SOON_S
    assert started.process.returncode == 0


def test_a_hangup_does_not_end_a_server_under_nohup(start):
    started = start(ignored=signal.SIGHUP)
    started.process.send_signal(signal.SIGHUP)
    os.kill(started.children[0].pid, signal.SIGKILL)  # the supervisor still answers for its children
    deadline = time.monotonic() + SOON_S
    while {child.pid for child in psutil.Process(started.process.pid).children()} <= {c.pid for c in started.children}:
        assert started.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert started.kill_and_time(signal.SIGTERM) < SOON_S


def test_a_signal_that_the_parent_has_blocked_still_ends_a_server(start):
    assert start(blocked=signal.SIGTERM).kill_and_time(signal.SIGTERM) < SOON_S


def test_a_second_signal_ends_the_drain_at_once(start):
    started = start(frontend="never drained")
    started.process.send_signal(signal.SIGTERM)
    while "draining" not in started.process.stderr.readline():
        assert started.process.poll() is None
    assert started.kill_and_time(signal.SIGTERM) < SOON_S
    assert started.process.returncode == 0
    assert not os.path.exists(started.run_dir)


def test_unresponsive_children_are_killed_before_the_deadline(start):
    started = start(worker="deaf", engine_core="deaf", frontend="deaf")
    assert 2.5 < started.kill_and_time(signal.SIGTERM) < 2.5 + SOON_S
    assert started.process.returncode == 0


def test_a_refused_start_prints_one_line_of_reason_and_exits_with_2(start):
    refused = start(engine_core="never ready", worker="refuse").process
    assert refused.returncode == 2
    last_line = refused.stderr.read().splitlines()[-1]
    assert last_line == "this machine has no such device; try --device cpu"


def test_a_fatal_end_has_a_nonzero_exit_code(start):
    started = start(Config(server=ServerConfig(port=0, max_restarts=0)), engine_core="exit")
    assert started.process.wait(SOON_S) == 1
    assert not os.path.exists(started.run_dir)


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "supervision.supervisor supervision.control_link listen",
            {"torch", "numpy", "starlette", "uvicorn", "tokenizers", "huggingface_hub", "asyncio"},
        ),
        (
            "cli.serve cli.banner supervision.supervisor listen config.model_folder",  # imported before children start
            {"zmq", "argparse"},
        ),
    ],
)
def test_a_supervisor_is_small_and_smaller_before_it_starts_its_children(modules, absent):
    names = ", ".join(f"paged_serve.frontend.{module}" for module in modules.split())
    code = f"import json, sys, {names}; print(json.dumps([*sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not absent & set(json.loads(printed.stdout))
