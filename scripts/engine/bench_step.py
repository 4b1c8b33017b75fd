"""Measure the CPU time per decode step of each process, with streams over HTTP.

    python scripts/engine/bench_step.py [--streams 32] [--seconds 4] [--runs 5] [MODEL [serve options]]

Regime: the script starts a server on a unix socket; all streams decode, one token per stream and step. The figure is
the CPU time of each process as the kernel counts it (schedstat: nanoseconds, system calls included), over some seconds
in which no stream starts or ends, divided by the number of steps. The worker's figure includes the model. The other
processes compete with the worker where they share its cores, so their target is 4.5 ms for 32 streams (3 % of a step of
150 ms), including idle time: `idle` is the CPU time per second of a process without requests (heartbeats and timers).
The client is this process.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from paged_serve.frontend.bench.load.load import Lengths, random_load
from paged_serve.frontend.bench.load.open_loop import LoadGenerator, Server
from paged_serve.frontend.bench.processes import processes_of
from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.bench.report.tables import number, table
from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.messages.engine_core import Utility

SETTLE_S = 0.3  # from the first token of the last stream


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of the process, as the kernel's scheduler counts them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def snapshot(pids: dict[str, int]) -> dict[str, float]:
    return {name: cpu_s(pid) for name, pid in pids.items()}


async def one_run(url: str, engine: Client, pids: dict[str, int], options: argparse.Namespace) -> dict[str, float]:
    """CPU milliseconds per step of each process, and the duration of the step."""
    lengths = Lengths(options.tokens, options.tokens)
    load = random_load(options.streams, Lengths(32, 32), lengths, seed=options.seed, vocab_size=1000)
    options.seed += 1
    # Sampled: a greedy model may end in a loop of special tokens, which have no text and make no chunk.
    generator = LoadGenerator(Server(url, HttpClient(url).models()[0], temperature=1.0))
    running = asyncio.create_task(generator.run(load, [0.0] * len(load)))
    while len(generator.timelines) < len(load) or not all(line.chunks for line in generator.timelines):
        await asyncio.sleep(0.01)
    await asyncio.sleep(SETTLE_S)
    began, before, first = time.perf_counter(), snapshot(pids), step_of(engine)
    await asyncio.sleep(options.seconds)
    after, ended, last = snapshot(pids), time.perf_counter(), step_of(engine)
    assert not any(line.ended for line in generator.timelines), "a stream has ended: give more --tokens"
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    steps = last - first
    return {
        **{name: 1000 * (after[name] - before[name]) / steps for name in pids},
        "a step": 1000 * (ended - began) / steps,
    }


def step_of(engine: Client) -> int:
    step: int = json.loads(engine.utility(Utility.STATS))["step"]
    return step


def idle_ms(pids: dict[str, int], seconds: float = 4.0) -> dict[str, float]:
    """CPU milliseconds per second of each process, without requests."""
    before = snapshot(pids)
    time.sleep(seconds)
    return {name: 1000 * (value - before[name]) / seconds for name, value in snapshot(pids).items()}


def run_dir_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[words.index("--run-dir") + 1]


def wait_ready(client: HttpClient, server: subprocess.Popen[bytes]) -> None:
    while not client.is_up("/ready"):
        assert server.poll() is None, "the server has ended"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1900, help="tokens per stream, enough for the whole run")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options, serve_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="bench-step-") as folder:
        path = f"{folder}/http.sock"
        command = [
            sys.executable,
            "-m",
            "paged_serve",
            "serve",
            *serve_options,
            "--uds",
            path,
            "--log-level",
            "warning",
        ]
        with subprocess.Popen(command) as server:
            try:
                wait_ready(HttpClient(f"unix:{path}"), server)
                pids = {**processes_of(server.pid), "client": os.getpid()}
                idle = idle_ms(pids)
                with Client.connect(run_dir_of(pids["engine-core"])) as engine:
                    runs = [uvloop.run(one_run(f"unix:{path}", engine, pids, options)) for _ in range(options.runs)]
            finally:
                server.terminate()
    report(options, idle, runs)


def report(options: argparse.Namespace, idle: dict[str, float], runs: list[dict[str, float]]) -> None:
    rows = [["CPU ms per step", "median", "min", "max", "idle ms/s"]]
    for name in runs[0]:
        values = [run[name] for run in runs]
        figures = (statistics.median(values), min(values), max(values), idle.get(name))
        rows.append([name, *map(number, figures)])
    ours = [name for name in idle if name != "client" and not name.startswith("worker")]
    sums = [sum(run[name] for name in ours) for run in runs]
    figures = (statistics.median(sums), min(sums), max(sums), sum(idle[name] for name in ours))
    rows.append(["all but worker and client", *map(number, figures)])
    print(table(rows))
    print(json.dumps({"bench": "step", "streams": options.streams, **environment(), "idle": idle, "runs": runs}))


if __name__ == "__main__":
    main()
