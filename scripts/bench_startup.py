"""From the shell's prompt to a server that answers, and back: how long, and how much memory it holds when idle?

    python scripts/bench_startup.py [--starts 10]

Regime: interpreter start and imports on a few cores; every start is a new one with the demo model, files in the page
cache. `help` is bounded by click's import. `live` is the chain supervisor -> listening socket -> first frontend code
and is bounded by the supervisor's imports. `ready` is bounded by `import torch` in the worker (about 0.9 s of one
core); the other processes' imports run beside it. `first token` is one request of one token at the moment of /ready,
`request` the median of ten later ones. `stop` is SIGTERM to the last process gone, when idle; `kill` the same for a
supervisor that is killed, bounded by the kernel's release of the worker's memory. RSS is read idle, after requests.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
TARGETS = {
    "help ms": 100,
    "live ms": 300,
    "ready ms": 3000,
    "supervisor MB": 40,
    "engine_core MB": 60,
    "frontend MB": 150,
}
POLL_S = 0.002


def milliseconds_since(began: float) -> float:
    return 1000 * (time.monotonic() - began)


def help_ms() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "paged_serve", "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return milliseconds_since(began)


class Server:
    """One start of `paged-serve` on a free port, and the figures it gave so far."""

    def __init__(self, folder: str):
        self._port = free_port()
        self.figures: dict[str, float] = {}
        command = [sys.executable, "-m", "paged_serve", "--port", str(self._port)]
        variables = {**os.environ, "TMPDIR": folder}
        self.began = time.monotonic()
        self._process = psutil.Popen(command, cwd=ROOT, env=variables, stderr=subprocess.DEVNULL)

    def measure(self, end: int) -> dict[str, float]:
        """Everything from the start to the end, which signal number `end` brings."""
        self.figures["live ms"] = self._when_answered("/live")
        self.figures["ready ms"] = self._when_answered("/ready")
        self.figures["first token ms"] = self._request_ms(max_tokens=1)
        self.figures["first decode ms"] = self._request_ms(max_tokens=8)
        self.figures["request ms"] = statistics.median(self._request_ms(max_tokens=8) for _ in range(10))
        self._measure_memory()
        self.figures["stop ms" if end == signal.SIGTERM else "kill ms"] = self._end_ms(end)
        return self.figures

    def _when_answered(self, path: str) -> float:
        while True:
            with contextlib.suppress(OSError), contextlib.closing(self._connection()) as connection:
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return milliseconds_since(self.began)
            assert self._process.poll() is None, "the server has ended"
            time.sleep(POLL_S)

    def _request_ms(self, max_tokens: int) -> float:
        body = {"prompt": "The capital of France is", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.8}
        began = time.monotonic()
        with contextlib.closing(self._connection()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        return milliseconds_since(began)

    def _measure_memory(self) -> None:
        self.figures["supervisor MB"] = self._process.memory_info().rss / 1e6
        for child in self._process.children():
            module = child.cmdline()[3]  # python -P -m paged_serve.workers ...
            name = module.removeprefix("paged_serve.").partition(".")[0]
            self.figures[f"{name} MB"] = child.memory_info().rss / 1e6

    def _end_ms(self, number: int) -> float:
        everybody = [self._process, *self._process.children(recursive=True)]
        began = time.monotonic()
        self._process.send_signal(number)
        self._process.wait(30)
        while any(map(is_alive, everybody)):
            time.sleep(POLL_S / 2)
        return milliseconds_since(began)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()  # its children go with it
        self._process.wait()


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; its new parent has not looked yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def measure_starts(count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"help ms": [help_ms() for _ in range(count)]}
    for index in range(count):
        with tempfile.TemporaryDirectory(prefix="start-") as folder, contextlib.closing(Server(folder)) as server:
            for name, value in server.measure(signal.SIGKILL if index % 2 else signal.SIGTERM).items():
                found.setdefault(name, []).append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    load_before = os.getloadavg()[0]
    subprocess.run([sys.executable, "-c", "import torch, paged_serve"], cwd=ROOT, check=True)  # into the page cache
    found = measure_starts(parser.parse_args().starts)
    print(f"{'':18s} {'median':>8s} {'min':>8s} {'max':>8s} {'target':>8s}")
    result = {}
    for name, values in found.items():
        result[name] = [round(value, 1) for value in (statistics.median(values), min(values), max(values))]
        print(f"{name:18s} " + " ".join(f"{value:8.1f}" for value in result[name]) + f" {TARGETS.get(name, ''):>8}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(
        json.dumps(
            {
                "bench": "startup",
                "commit": commit.stdout.strip(),
                "cores": os.cpu_count(),
                "load": load_before,
                "median_min_max": result,
            }
        )
    )


if __name__ == "__main__":
    main()
