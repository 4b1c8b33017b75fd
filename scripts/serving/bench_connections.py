"""Measure the cost of connections that send nothing, send slowly, or never read.

    python scripts/serving/bench_connections.py {idle,unread} [--rounds 6] [--seconds 8] [--rate 30] [serve options]

Starts its own server, with the built-in demo model unless an option names another. Clients and attackers are processes
on the same machine and use part of it. A load of --rate alternates between running alone and running beside the
attackers; every second round reverses the order, so that drift affects both equally. Standby workers are off, because
starting one occupies a core for seconds. The first quarter of each run is not counted.

idle    10,000 idle and 1,000 slow connections; a slow one sends one byte of a request's headers per second and
        reconnects when it is closed. Prints the p99 of the time to first token (target: +10 %) and the frontend's
        memory per idle connection (target: 10 KB).
unread  500 streams of 400 tokens with five logprobs each, whose clients never read. The load starts when the engine can
        compute nothing more for them. Prints the p99 of the time between two tokens (target: +5 %) and the growth of
        the engine core (target: 32 MB) and of the frontend.

Each p99 is over all runs of a kind. The 95 % interval of its change is a bootstrap over rounds (2,000 samples).
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

import uvloop
from bench_overload import Running, peak_of, percentile, run_load, serving, shown

from paged_serve.frontend.bench.load.timeline import Timeline
from paged_serve.frontend.bench.processes import memory_bytes, processes_of
from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.open_files import raise_open_files_limit

NUM_IDLE, NUM_SLOW, NUM_UNREAD = 10_000, 1_000, 500
OUTPUT_TOKENS = (16, 48)  # range per request of the load
NOT_COUNTED = 0.25  # share of a run, from its start
BOOTSTRAPS = 2000
UNREAD_BODY = {
    "model": "demo",
    "prompt": "Once upon a time",
    "max_tokens": 400,
    "logprobs": 5,
    "ignore_eos": True,
    "stream": True,
}
SETTLED_S = 2.0  # for which the worker must have been idle
Attack = Callable[[str, int], Awaitable[None]]  # takes host and port; returns when all connections are open


async def alternate(
    running: Running, options: argparse.Namespace, attack: Attack, figure: Callable[[Timeline], list[float]]
) -> dict[str, object]:
    """The p99 of `figure`, alone and beside `attack`, and the growth of the processes meanwhile."""
    server = running.as_seen_by()
    await peak_of(server, options, 2.0, options.seed)  # warm-up
    found: dict[str, list[list[float]]] = {"alone": [], "beside": []}
    errors = {"alone": 0, "beside": 0}
    grown: dict[str, list[int]] = {"engine-core": [], "frontend 0": []}
    for turn in range(2 * options.rounds):
        kind = ("alone", "beside", "beside", "alone")[turn % 4]
        before = memory_of(running.pid)
        with attackers(running, attack) if kind == "beside" else contextlib.nullcontext():
            after = memory_of(running.pid)
            lines = await run_load(server, options, options.rate, options.seconds, options.seed + turn // 2)
            if kind == "beside":
                for name, values in grown.items():
                    values.append(after[name] - before[name])
        begin = lines[0].intended + NOT_COUNTED * options.seconds
        found[kind].append([value for line in lines if line.intended >= begin for value in figure(line)])
        errors[kind] += sum(bool(line.error) for line in lines)
    values = {kind: list(chain.from_iterable(runs)) for kind, runs in found.items()}
    p99 = {kind: 1000 * percentile(each, 0.99) for kind, each in values.items()}
    return {
        "requests/s": options.rate,
        "values": {kind: len(each) for kind, each in values.items()},
        "p50, ms": {kind: 1000 * percentile(each, 0.5) for kind, each in values.items()},
        "p99, ms": p99,
        "p99 of each run, ms": {kind: [1000 * percentile(run, 0.99) for run in runs] for kind, runs in found.items()},
        "p99 increase, %": 100 * (p99["beside"] / p99["alone"] - 1),
        "p99 increase, %, 95 % interval": interval(found["alone"], found["beside"]),
        "failures": errors,
        "grown by at most, MB": {name: max(values) / 2**20 for name, values in grown.items()},
    }


def interval(alone: list[list[float]], beside: list[list[float]]) -> list[float]:
    """The 95 % interval of the increase of the second p99 over the first, in percent.

    Whole rounds are resampled, because the values of one run are correlated.
    """
    draw = random.Random(0)
    ratios = []
    for _ in range(BOOTSTRAPS):
        rounds = draw.choices(range(len(alone)), k=len(alone))
        drawn = [percentile([value for index in rounds for value in runs[index]], 0.99) for runs in (alone, beside)]
        ratios.append(100 * (drawn[1] / drawn[0] - 1))
    return [percentile(ratios, 0.025), percentile(ratios, 0.975)]


def memory_of(supervisor_pid: int) -> dict[str, int]:
    return {name: memory_bytes(pid)["rss"] for name, pid in processes_of(supervisor_pid).items()}


@contextlib.contextmanager
def attackers(running: Running, attack: Attack) -> Iterator[None]:
    """Run `attack` in its own process; the block starts when its connections are open and its requests computed."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    attacker = context.Process(target=_attack, args=(attack, running.url, ready), daemon=True)
    attacker.start()
    assert ready.wait(120), "the connections were not made"
    wait_until_settled(processes_of(running.pid)["worker 0"])
    try:
        yield
    finally:
        attacker.kill()
        attacker.join()
        time.sleep(1.0)  # the server closes its side


def wait_until_settled(worker_pid: int) -> None:
    """Wait until the worker uses almost no CPU time: it has nothing left to compute."""
    before = -1.0
    while (now := cpu_seconds(worker_pid)) - before > 0.1 * SETTLED_S:
        before = now
        time.sleep(SETTLED_S)


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def _attack(attack: Attack, url: str, ready: "multiprocessing.synchronize.Event") -> None:
    raise_open_files_limit()
    name, port = url.removeprefix("http://").split(":")

    async def hold() -> None:
        await attack(name, int(port))
        ready.set()
        await asyncio.Event().wait()

    uvloop.run(hold())


async def idle_and_slow(name: str, port: int) -> None:
    for _ in range(NUM_IDLE // 100):  # a hundred at a time, because the listening socket's queue is short
        KEPT.extend(await asyncio.gather(*(_idle(name, port) for _ in range(100))))
    KEPT.extend(asyncio.create_task(_slow(name, port, random.Random(index))) for index in range(NUM_SLOW))
    await asyncio.sleep(1.0)


KEPT: list[object] = []  # references to the connections and tasks of an attacker's process


async def _idle(name: str, port: int) -> asyncio.StreamWriter:
    """Send one request and keep the connection open."""
    reader, writer = await asyncio.open_connection(name, port, limit=1024)
    writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    return writer


async def _slow(name: str, port: int, draw: random.Random) -> None:
    await asyncio.sleep(draw.random())
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(name, port, limit=1024)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            while not reader.at_eof():
                writer.write(b"a")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1024), 1.0)
            writer.close()


async def never_read(name: str, port: int) -> None:
    body = json.dumps(UNREAD_BODY).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    for _ in range(NUM_UNREAD):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((name, port))
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        KEPT.append(connection)
    await asyncio.sleep(SETTLED_S)


def first_token(line: Timeline) -> list[float]:
    return [] if line.first_token_s is None else [line.first_token_s]


KINDS: dict[str, tuple[Attack, Callable[[Timeline], list[float]]]] = {
    "idle": (idle_and_slow, first_token),
    "unread": (never_read, Timeline.gaps_s),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=6, help="rounds of one run alone and one beside the attackers")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a run")
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second of the load")
    parser.add_argument("--seed", type=int, default=0)
    options, serve_options = parser.parse_known_args()
    options.output_tokens = OUTPUT_TOKENS
    raise_open_files_limit()
    queue = ["--max-num-seqs", "128", "--max-num-queued-requests", "1024", "--no-standby-workers"]
    with serving([*queue, *serve_options], []) as running:
        result = uvloop.run(alternate(running, options, *KINDS[options.kind]))
    if options.kind == "idle":
        grown = result["grown by at most, MB"]
        assert isinstance(grown, dict)
        result["bytes of the frontend for each connection"] = grown["frontend 0"] * 2**20 / (NUM_IDLE + NUM_SLOW)
    for name, value in result.items():
        print(f"{name:48s} {shown(value)}")
    seconds = {"rounds": options.rounds, "seconds": options.seconds}
    print(json.dumps({"bench": f"connections {options.kind}", **seconds, **environment(), **result}))


if __name__ == "__main__":
    main()
