"""Times one start of `paged-serve serve` on a unix socket, from exec to the exit of its last process.

Most of the time is spent as follows. `help`: importing click. `/live`: the imports of the supervisor and of early
health. `/ready`: the worker's import of torch, then reading its weights. A stop: the exchange of messages. A kill: the
kernel's release of the worker's memory.
"""

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paged_serve.protocol.errors import ConfigError, EngineDead
from paged_serve.protocol.messages.config import Config

from ..cli.http_client import HttpClient
from ..python_command import python_command, python_environment
from .processes import is_alive, memory_bytes, processes_of

POLL_S = 0.002
GIVE_UP_AFTER_S = 3600.0
LATER_REQUESTS = 10
_BODY = {"prompt": "The capital of France is", "max_tokens": 8, "ignore_eos": True, "temperature": 0.0}


@dataclass(slots=True)
class Start:
    """The figures of one start."""

    times_ms: dict[str, float]
    memory_mb: dict[str, float]


@dataclass(frozen=True, slots=True)
class StartResult:
    """The figures of several starts, by name, in order; and of a first start, whose files may not be in memory yet."""

    times_ms: dict[str, list[float]]
    memory_mb: dict[str, list[float]]
    first_times_ms: dict[str, float]
    first_memory_mb: dict[str, float]

    @classmethod
    def of(cls, first: Start, starts: list[Start], help_ms: list[float]) -> "StartResult":
        times_ms: dict[str, list[float]] = {"paged-serve --help": help_ms}
        memory_mb: dict[str, list[float]] = {}
        for start in starts:
            for found, into in ((start.times_ms, times_ms), (start.memory_mb, memory_mb)):
                for name, value in found.items():
                    into.setdefault(name, []).append(value)
        return cls(times_ms, memory_mb, first.times_ms, first.memory_mb)


def measure_help_ms() -> float:
    began = time.monotonic()
    command = [*python_command("paged_serve"), "--help"]
    subprocess.run(command, stdout=subprocess.DEVNULL, env=python_environment(), check=True)
    return _ms_since(began)


def measure_start(config: Config, *, kill: bool) -> Start:
    """Start the server, send requests, read its memory, and end it by SIGTERM or SIGKILL.

    No process is left afterwards, whatever happens. Raises ConfigError or EngineDead with the server's message.
    """
    with tempfile.TemporaryDirectory(prefix="paged-serve-bench-") as folder, _server(config, folder) as (began, server):
        keys = config.server.api_keys
        client = HttpClient(f"unix:{folder}/http.sock", keys[0] if keys else "")
        times: dict[str, float] = {}
        for path in ("/live", "/ready"):
            _wait_for(client, path, server, folder)
            times[f"{path} responds"] = _ms_since(began)
        request_began = time.monotonic()
        waited = _first_token_ms(client)
        times["first token"] = 1000 * (request_began - began) + waited
        times["  of which the request"] = waited
        times["first token of later requests"] = statistics.median(
            _first_token_ms(client) for _ in range(LATER_REQUESTS)
        )
        memory = _memory_mb(server.pid)
        times["SIGKILL to last exit" if kill else "SIGTERM to last exit"] = _end_ms(
            server, signal.SIGKILL if kill else signal.SIGTERM
        )
    return Start(times, memory)


@contextmanager
def _server(config: Config, folder: str) -> Iterator[tuple[float, subprocess.Popen[bytes]]]:
    file = Path(folder) / "config.json"
    file.touch(mode=0o600)  # contains the API keys
    file.write_bytes(msgspec.json.encode(config))
    command = [*python_command("paged_serve"), "serve", "--config", str(file), "--uds", f"{folder}/http.sock"]
    with open(f"{folder}/log", "wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=python_environment())
    try:
        yield began, process
    finally:
        process.kill()  # its children end with it
        process.wait()


def _wait_for(client: HttpClient, path: str, server: subprocess.Popen[bytes], folder: str) -> None:
    deadline = time.monotonic() + GIVE_UP_AFTER_S
    while not client.is_up(path):
        lines = (Path(folder) / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines() or [
            "the log is empty"
        ]
        if (code := server.poll()) is not None:
            raise (ConfigError if code == 2 else EngineDead)(lines[-1].removeprefix("paged-serve: "))
        if time.monotonic() > deadline:
            raise EngineDead(f"{path} did not answer within {GIVE_UP_AFTER_S:.0f} s; the last line: {lines[-1]}")
        time.sleep(POLL_S)


def _first_token_ms(client: HttpClient) -> float:
    began = time.monotonic()
    times = [_ms_since(began) for _ in client.stream("/v1/completions", _BODY)]
    return times[0]


def _memory_mb(supervisor_pid: int) -> dict[str, float]:
    found, total = {}, 0.0
    for name, pid in processes_of(supervisor_pid).items():
        memory = memory_bytes(pid)
        found[f"{name}, RSS"] = memory["rss"] / 1e6
        found[f"{name}, PSS"] = memory["pss"] / 1e6
        total += memory["pss"] / 1e6
    return {**found, "total, PSS": total}


def _end_ms(server: subprocess.Popen[bytes], number: int) -> float:
    processes = processes_of(server.pid).values()
    began = time.monotonic()
    os.kill(server.pid, number)
    server.wait()
    while any(map(is_alive, processes)):
        time.sleep(POLL_S / 4)
    return _ms_since(began)


def _ms_since(began: float) -> float:
    return 1000 * (time.monotonic() - began)
