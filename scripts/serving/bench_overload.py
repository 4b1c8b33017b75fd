"""Measure goodput and fairness of an overloaded server.

    python scripts/serving/bench_overload.py {goodput,fairness} [--seconds 20] [--rate R] [serve options]

Each measurement starts its own server, over TCP, with the built-in demo model unless an option names another. The
clients are processes on the same machine and use part of it.

goodput      Peak: 48 concurrent requests for 32 rows, closed loop. Then ten times the request rate of the peak, open
             loop. Regime: the model occupies one core, so the cost of refusals for frontend, client and kernel must fit
             beside it. Prints the output tokens per second of the answers relative to the peak (target: 95 %) and the
             time of a refusal (target: 20 ms).
fairness     Ten API keys send 9 % of the peak rate each. Then one key sends ten times as much; both runs are
             repeated once. Prints the p99 of the time to first token of the other nine keys (target: +20 %).
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from paged_serve.frontend.bench.load.load import Lengths, LoadRequest, arrival_times, random_load
from paged_serve.frontend.bench.load.open_loop import LoadGenerator, Server
from paged_serve.frontend.bench.load.timeline import Timeline
from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.open_files import raise_open_files_limit

ROWS, QUEUED, CROWD = 32, 64, 48  # CROWD requests keep all rows busy and are all accepted
INPUTS = Lengths(16, 64)
KEYS = [f"key-{index}" for index in range(10)]
REFUSED_WITHIN_S = 0.02
RAMP = 0.2  # share of a run that is not counted, from its start: the queue fills


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    url: str
    pid: int

    def as_seen_by(self, key: str = "") -> Server:
        return Server(self.url, "demo", api_key=key, temperature=1.0, timeout_s=120.0)


@contextlib.contextmanager
def serving(options: list[str], keys: list[str]) -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    limits = ["--max-num-seqs", str(ROWS), "--max-num-queued-requests", str(QUEUED), "--log-level", "warning"]
    command = [sys.executable, "-m", "paged_serve", "serve", "--port", str(port), "--served-model-name", "demo"]
    command += [*limits, *(word for key in keys for word in ("--api-key", key)), *options]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            while not HttpClient(url, keys[0] if keys else "").is_up("/ready"):
                assert server.poll() is None, "the server has ended"
                time.sleep(0.05)
            yield Running(url, server.pid)
        finally:
            server.terminate()


async def run_load(
    server: Server, options: argparse.Namespace, rate: float, seconds: float, seed: int, concurrency: int = 0
) -> list[Timeline]:
    """Run Poisson arrivals for `seconds`, or, with `concurrency`, that many closed loops."""
    count = max(1, int(rate * seconds))
    load: list[LoadRequest] = random_load(count, INPUTS, Lengths(*options.output_tokens), seed=seed, vocab_size=1000)
    times = [0.0] * count if concurrency else arrival_times(count, rate, "poisson", seed)
    return await LoadGenerator(server, concurrency).run(load, times)


def tokens_per_second(lines: list[Timeline], begin: float, end: float) -> float:
    """Output tokens per second of the answers, by the arrival of their chunks between `begin` and `end`."""
    good = [line for line in lines if not line.error]
    return sum(
        line.num_tokens * sum(begin <= at < end for at in line.chunks) / len(line.chunks)
        for line in good
        if line.chunks
    ) / (end - begin)


def window(lines: list[Timeline], seconds: float) -> tuple[float, float]:
    start = lines[0].intended
    return start + RAMP * seconds, start + seconds


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


async def peak_of(server: Server, options: argparse.Namespace, seconds: float, seed: int) -> tuple[float, float]:
    """(requests, output tokens) per second of a closed loop. A short run estimates the number of requests needed."""
    began = time.perf_counter()
    await run_load(server, options, 4 * CROWD, 1, seed, CROWD)
    guess = 4 * CROWD / (time.perf_counter() - began)
    lines = await run_load(server, options, guess, seconds * 1.2, seed + 1, CROWD)
    begin, end = lines[0].sent + 1.0, sorted(line.ended for line in lines)[-CROWD]
    done = sum(begin <= line.ended < end for line in lines)
    return done / (end - begin), tokens_per_second(lines, begin, end)


async def goodput(running: Running, options: argparse.Namespace) -> dict[str, object]:
    server = running.as_seen_by()
    requests, tokens = await peak_of(server, options, options.seconds, options.seed)
    lines = await run_load(server, options, 10 * requests, options.seconds, options.seed + 2)
    again, tokens_again = await peak_of(server, options, options.seconds, options.seed + 3)
    good = tokens_per_second(lines, *window(lines, options.seconds))
    refused = [line.ended - line.sent for line in lines if line.error == "HTTP 429"]
    late = [line.sent - line.intended for line in lines]
    peak = (tokens + tokens_again) / 2
    return {
        "peak requests/s": [requests, again],
        "peak tokens/s": [tokens, tokens_again],
        "offered requests/s": len(lines) / options.seconds,
        "goodput tokens/s": good,
        "goodput of peak, %": 100 * good / peak,
        "answered": sum(not line.error for line in lines),
        "refused": len(refused),
        "other failures": sum(bool(line.error) for line in lines) - len(refused),
        "time of a refusal, ms (median, p99)": [1000 * percentile(refused, part) for part in (0.5, 0.99)],
        "refused within 20 ms, %": 100 * sum(value < REFUSED_WITHIN_S for value in refused) / max(1, len(refused)),
        "delay of the client's sends, ms (p99)": 1000 * percentile(late, 0.99),
    }


async def fairness(running: Running, options: argparse.Namespace) -> dict[str, object]:
    servers = [running.as_seen_by(key) for key in KEYS]
    requests, _ = await peak_of(servers[0], options, options.seconds / 2, options.seed)
    share = options.rate or 0.09 * requests
    found: dict[str, list[float]] = {"fair": [], "greedy": []}
    refused = {"greedy": 0, "others": 0}
    for turn in range(4):
        kind = ("fair", "greedy")[turn % 2]
        rates = [10 * share if kind == "greedy" else share, *[share] * 9]
        runs = [
            run_load(server, options, rate, options.seconds, options.seed + 100 * (turn // 2) + index)
            for index, (server, rate) in enumerate(zip(servers, rates, strict=True))
        ]
        greedy, *others = await asyncio.gather(*runs)
        begin, end = window(greedy, options.seconds)
        lines = [line for run in others for line in run if begin <= line.intended < end]
        found[kind] += [line.first_token_s for line in lines if line.first_token_s is not None]
        refused["greedy"] += sum(line.error == "HTTP 429" for line in greedy)
        refused["others"] += sum(bool(line.error) for line in lines)
    p99 = {kind: 1000 * percentile(values, 0.99) for kind, values in found.items()}
    return {
        "peak requests/s": requests,
        "each key's requests/s": share,
        "others' first tokens": {kind: len(values) for kind, values in found.items()},
        "others' TTFT p50, ms": {kind: 1000 * percentile(values, 0.5) for kind, values in found.items()},
        "others' TTFT p99, ms": p99,
        "p99 increase, %": 100 * (p99["greedy"] / p99["fair"] - 1),
        "refused": refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {"goodput": goodput, "fairness": fairness}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of a run")
    parser.add_argument("--rate", type=float, help="requests per second: of each key, or of the load")
    parser.add_argument("--output-tokens", type=int, nargs=2, default=(16, 48), metavar=("FROM", "TO"))
    parser.add_argument("--seed", type=int, default=0)
    options, serve_options = parser.parse_known_args()
    raise_open_files_limit()
    with serving(serve_options, KEYS if options.kind == "fairness" else []) as running:
        result = uvloop.run(kinds[options.kind](running, options))
    for name, value in result.items():
        print(f"{name:48s} {shown(value)}")
    print(json.dumps({"bench": f"overload {options.kind}", "seconds": options.seconds, **environment(), **result}))


def shown(value: object) -> str:
    match value:
        case dict():
            return "  ".join(f"{name} {shown(part)}" for name, part in value.items())
        case list():
            return "  ".join(map(shown, value))
        case float():
            return f"{value:,.1f}"
    return str(value)


if __name__ == "__main__":
    main()
