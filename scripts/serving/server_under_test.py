"""Runs `paged-serve` in a separate process, for measurements that kill parts of it."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from paged_serve.frontend.bench.processes import children_of, processes_of

READY_POLL_S = 0.02
START_TIMEOUT_S = 120.0
STANDBY_TIMEOUT_S = 30.0


class Server:
    """A server on a unix socket in its own folder."""

    def __init__(self, folder: str, options: list[str]):
        self.socket = f"{folder}/http.sock"
        self.log: IO[str] = open(f"{folder}/log", "w+")  # noqa: SIM115 (open as long as the server runs)
        command = [sys.executable, "-m", "paged_serve", "--uds", self.socket, *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def victim(self, role: str) -> psutil.Process:
        """The process with this role; the last one if there are several."""
        pids = processes_of(self.process.pid)
        return psutil.Process([pid for name, pid in pids.items() if name.startswith(role)][-1])

    def processes(self) -> list[int]:
        """All processes of this server, helpers of helpers included."""
        found, todo = [], [self.process.pid]
        while todo:
            found.append(todo.pop())
            todo += children_of(found[-1])
        return found

    @property
    def num_warm_standbys(self) -> int:
        """The number of standby workers that have finished their imports since the start."""
        return self.stderr().count("standing by")

    def stderr(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_halted(process: psutil.Process) -> bool:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


async def is_ready(path: str) -> bool:
    """Whether /ready answers 200 within half a second."""
    try:
        async with asyncio.timeout(0.5):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
            return b" 200 " in answer
    except (OSError, TimeoutError):
        return False


async def wait_ready(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await is_ready(server.socket):
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server is not ready:\n{server.stderr()}")
        await asyncio.sleep(READY_POLL_S)


async def wait_for_standbys(server: Server, count: int) -> None:
    """Wait until `count` standby workers have finished their imports, or for STANDBY_TIMEOUT_S (they may be off)."""
    deadline = time.monotonic() + STANDBY_TIMEOUT_S
    while server.num_warm_standbys < count and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
