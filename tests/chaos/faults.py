"""Faults in processes, and the conditions that the processes and their files must meet afterwards."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.engine_core import Utility

from ..end_to_end.server_process import ROLES, ServerProcess

GONE_WITHIN_S = 60.0
MOVED_WITHIN_S = 120.0
CHILDREN = ("worker", "engine-core", "frontend")
PROCESSES = (*CHILDREN, "supervisor")
HELPER = "template helper"  # a frontend's child
HELPER_MODULE = "paged_serve.frontend.conversation.template_process"
# after SIGSTOP without SIGCONT, the server must detect the hang
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP", "SIGSTOP+SIGCONT")


def run_dir(server: ServerProcess) -> Path:
    [path] = server.temporary.glob("paged-serve-*/run-*")
    return path


def processes_of(server: ServerProcess, role: str) -> list[psutil.Process]:
    """The processes that are not ending. `role`: a role, or a role and an index, as "worker 1"."""
    if role == "supervisor":
        return [psutil.Process(server.process.pid)]
    found = []
    for child in _children(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            is_meant = role in (_role(child), child.name().replace("-", " "))
            if is_meant and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def process_of(server: ServerProcess, role: str) -> psutil.Process | None:
    """A process of the role; None if there is none."""
    return next(iter(processes_of(server, role)), None)


def wait_for_process(server: ServerProcess, role: str) -> psutil.Process:
    deadline = time.monotonic() + GONE_WITHIN_S
    while (found := process_of(server, role)) is None:
        assert time.monotonic() < deadline, f"there is no {role}:\n{server.stderr()}"
        time.sleep(0.005)
    return found


def send(process: psutil.Process, what: str) -> None:
    """Send the first signal of `what`; a process that has just ended is ignored."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, getattr(signal, what.partition("+")[0]))


def resume(process: psutil.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)


async def check_nothing_is_left(server: ServerProcess) -> None:
    """Check that no sequence and no block is left, with the engine's audit and its statistics."""
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        await client.utility(Utility.CHECK_INVARIANTS)
        await client.utility(Utility.RESET_PREFIX_CACHE)
        deadline = time.monotonic() + MOVED_WITHIN_S
        while (stats := json.loads(await client.utility(Utility.STATS)))["num_free_blocks"] != stats["num_blocks"]:
            assert stats["kv_tier"] is not None, stats
            assert time.monotonic() < deadline, stats  # blocks on their way to the tier
    assert stats["num_running"] == stats["num_waiting"] == 0, stats


def wait_ended(server: ServerProcess) -> int:
    """Wait until all processes of this server are gone; returns the exit code."""
    code = server.process.wait(GONE_WITHIN_S)
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := list(_of_this_server(server)):
        assert time.monotonic() < deadline, f"processes outlive the server: {left}"
        time.sleep(0.002)
    return code


def check_no_file_is_left(server: ServerProcess) -> None:
    assert [path.name for path in server.temporary.glob("paged-serve-*/*")] == []


def _role(child: psutil.Process) -> str:
    """The role by the process's name, or by its module before it has one. A promoted standby worker is a worker."""
    role, words = child.name().rpartition("-")[0], child.cmdline()
    if role in (*CHILDREN, "standby"):
        return role
    if any(HELPER_MODULE in word for word in words):  # in the program text
        return HELPER
    return next((ROLES[word] for word in words if word in ROLES), "")


def _children(server: ServerProcess) -> list[psutil.Process]:
    try:
        return psutil.Process(server.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _of_this_server(server: ServerProcess) -> Iterator[tuple[int, list[str]]]:
    """All processes of the machine with this server's temporary directory, which children inherit."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(server.temporary) and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid, process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
