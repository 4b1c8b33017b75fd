"""How long do streams stand still when a process is killed or halted under load?

    python scripts/bench_recovery.py [--kills 10] [--halts 3] [--victims worker,engine-core] [-- SERVER OPTIONS]

Regime: a real server with the demo model and 64 streams (every second one sampled, all with seeds). In each round one
process gets SIGKILL, or SIGSTOP, once a number of tokens has come that is drawn from the seed. A round's stall is the
longest time between two tokens of one stream, over all streams. What bounds it: how fast the loss is noticed, how much
of a process's start was done beforehand (a spare's imports), loading and warming up, and computing anew all the tokens
that the streams had. Every stream is compared with the same stream undisturbed. One JSON line ends the table.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

import psutil
import uvloop

from paged_serve.frontend.bench.http_connection import ConnectionPool
from paged_serve.frontend.bench.processes import processes_of

READY_POLL_S = 0.05
START_TIMEOUT_S = 120.0
ROUND_TIMEOUT_S = 120.0
PAUSE_S = 3.0  # between two rounds: a spare must have become warm
MANY_RESTARTS = ("--max-restarts", "100000")


@dataclass(slots=True)
class Stream:
    """One answer as it came: text, and when its pieces were there."""

    on_token: Callable[[], None]
    text: str = ""
    times: list[float] = field(default_factory=list)
    error: str = ""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _rest: bytes = b""

    def begin(self, status: int) -> None:
        if status != 200:
            self.error = f"HTTP {status}"

    def feed(self, data: bytes, now: float) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            found = re.search(rb"^data: ({.*})$", event, re.MULTILINE)
            if found is None:
                continue
            self.times.append(now)
            body = json.loads(found[1])
            self.text += body["choices"][0]["text"] if "choices" in body else f"[{body}]"
            self.on_token()

    def end(self, now: float) -> None:
        self.done.set()

    def fail(self, kind: str, detail: str, now: float) -> None:
        self.error = self.error or f"{kind}: {detail}"
        self.done.set()

    @property
    def longest_gap_s(self) -> float:
        return max((later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)), default=0.0)


@dataclass(slots=True)
class Round:
    """What one kill did."""

    stall_s: float
    num_wrong: int  # streams that broke, or whose bytes differ
    not_ready_after_s: float | None = None  # from the signal to the first /ready that is not 200
    ready_after_s: float | None = None  # from the signal to the first 200 after that


class Server:
    """`paged-serve` on a unix socket in a folder of its own."""

    def __init__(self, folder: str, options: list[str]):
        self.socket = f"{folder}/http.sock"
        self.log: IO[str] = open(f"{folder}/log", "w+")  # noqa: SIM115 (as long as the server)
        command = [sys.executable, "-m", "paged_serve", "--uds", self.socket, *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def victim(self, role: str) -> psutil.Process:
        """The process of a role, the last of several."""
        pids = processes_of(self.process.pid)
        return psutil.Process([pid for name, pid in pids.items() if name.startswith(role)][-1])

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def is_ready(path: str) -> bool:
    """Whether /ready says 200 within half a second."""
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
            server.log.seek(0)
            raise SystemExit(f"the server is not ready:\n{server.log.read()}")
        await asyncio.sleep(READY_POLL_S)


def request_bytes(index: int, num_tokens: int) -> bytes:
    body = {
        "model": "demo",
        "prompt": f"Tell me story number {index}.",
        "max_tokens": num_tokens,
        "temperature": index % 2,
        "seed": index,
        "stream": True,
        "ignore_eos": True,
    }
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


async def read_streams(
    server: Server, options: argparse.Namespace, signal_after: int, strike: Callable
) -> list[Stream]:
    """All streams, to their ends; `strike` is called when so many tokens have come."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == signal_after:
            strike()

    pool = ConnectionPool(f"unix:{server.socket}")
    streams = [Stream(count) for _ in range(options.streams)]
    for index, stream in enumerate(streams):
        (await pool.take()).exchange(request_bytes(index, options.tokens), stream)
    async with asyncio.timeout(ROUND_TIMEOUT_S):
        for stream in streams:
            await stream.done.wait()
    pool.close()
    return streams


async def watch_ready(server: Server, since: float, found: Round) -> None:
    """Notes when /ready turned to something else than 200, and when back."""
    while found.ready_after_s is None:
        ready = await is_ready(server.socket)
        if not ready and found.not_ready_after_s is None:
            found.not_ready_after_s = time.perf_counter() - since
        if ready and found.not_ready_after_s is not None:
            found.ready_after_s = time.perf_counter() - since
        await asyncio.sleep(READY_POLL_S)


async def one_round(
    server: Server, options: argparse.Namespace, role: str, number: int, rng: random.Random, expected: list[str]
) -> Round:
    found, watchers = Round(0.0, 0), []

    def strike() -> None:
        server.victim(role).send_signal(number)
        watchers.append(asyncio.create_task(watch_ready(server, time.perf_counter(), found)))

    signal_after = rng.randrange(1, int(0.9 * options.streams * options.tokens))
    streams = await read_streams(server, options, signal_after, strike)
    found.stall_s = max(stream.longest_gap_s for stream in streams)
    wrong = [i for i, s in enumerate(streams) if s.error or s.text != expected[i]]
    found.num_wrong = len(wrong)
    await wait_ready(server)
    for watcher in watchers:
        watcher.cancel()
    return found


async def measure(server: Server, options: argparse.Namespace) -> dict[str, list[Round]]:
    await wait_ready(server)
    undisturbed = await read_streams(server, options, 0, lambda: None)
    expected = [stream.text for stream in undisturbed]
    rng = random.Random(options.seed)
    results: dict[str, list[Round]] = {"undisturbed": [Round(max(s.longest_gap_s for s in undisturbed), 0)]}
    plan = [("SIGKILL", options.kills), ("SIGSTOP", options.halts)]
    for name, count in plan:
        for _ in range(count):
            for role in options.victims.split(","):
                await asyncio.sleep(PAUSE_S)
                number = getattr(signal, name)
                found = await one_round(server, options, role, number, rng, expected)
                results.setdefault(f"{name} {role}", []).append(found)
                print(f"# {name} {role}: {found}", file=sys.stderr)
    return results


def report(results: dict[str, list[Round]], options: argparse.Namespace) -> None:
    print("victim                   rounds stall median     max  not ready   ready  wrong")
    figures: dict[str, Any] = {}
    for name, rounds in results.items():
        stalls = [found.stall_s for found in rounds]
        gone = [found.not_ready_after_s for found in rounds if found.not_ready_after_s is not None]
        back = [found.ready_after_s for found in rounds if found.ready_after_s is not None]
        wrong = sum(found.num_wrong for found in rounds)
        gone_text, back_text = (f"{max(times):.2f} s" if times else "-" for times in (gone, back))
        print(
            f"{name:24s} {len(rounds):6d} {statistics.median(stalls):10.2f} s {max(stalls):5.2f} s "
            f"{gone_text:>10s} {back_text:>7s} {wrong:6d}"
        )
        figures[name] = {
            "stalls_s": rounded(stalls),
            "not_ready_s": rounded(gone),
            "ready_s": rounded(back),
            "wrong": wrong,
        }
    print(json.dumps({"bench": "recovery", "streams": options.streams, "tokens": options.tokens, "rounds": figures}))


def rounded(times: list[float]) -> list[float]:
    return [round(value, 3) for value in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="rounds of SIGKILL a victim")
    parser.add_argument("--halts", type=int, default=3, help="rounds of SIGSTOP a victim")
    parser.add_argument("--victims", default="worker,engine-core")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-log", action="store_true", help="print the server's log at the end")
    parser.add_argument("server_options", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paged-serve-bench-") as folder:
        server = Server(folder, [*MANY_RESTARTS, *options.server_options])
        try:
            results = uvloop.run(measure(server, options))
        finally:
            server.close()
            if options.keep_log:
                server.log.seek(0)
                print(server.log.read(), file=sys.stderr)
    report(results, options)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    main()
