"""Measure how streams are delayed when a process is killed or stopped under load.

    python scripts/serving/bench_recovery.py [--kills 10] [--halts 3] [--victims worker,engine-core] [-- SERVER OPTIONS]

Regime: a real server with the demo model and 64 streams. Every second stream is sampled; all have seeds and an
Idempotency-Key, so that they resume after their last event when a frontend dies. In each round, one process gets
SIGKILL or SIGSTOP after a number of tokens that is drawn from the seed. Victims are worker, engine-core, frontend (the
server then has two) and, for SIGSTOP only, the supervisor. The stall of a round is the longest time between two tokens
of one stream, over all streams. It consists of the detection of the loss, the part of a process's start that is not
done in advance (a standby worker has finished its imports), loading and warm-up, and the recomputation of all tokens of
the streams. Every stream is compared token by token with the same stream without the fault: missing tokens are lost,
surplus tokens are doubled. The last line is JSON. For a hundred kills of worker and core:

    python scripts/serving/bench_recovery.py --kills 50 --halts 0
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop
from resumed_streams import Stream
from server_under_test import READY_POLL_S, Server, is_halted, is_ready, wait_for_standbys, wait_ready

from paged_serve.frontend.bench.load.http_connection import ConnectionPool

ROUND_TIMEOUT_S = 120.0
LAST_LOOK_S = 1.0
USES_A_STANDBY = ("worker", "engine-core")
SERVER_OPTIONS = ("--max-restarts", "100000", "--dump-dir", "none")


@dataclass(slots=True)
class Round:
    """The effects of one signal. Times are measured from it."""

    stall_s: float = 0.0
    num_wrong: int = 0  # streams that ended in an error, or whose text or tokens differ
    num_lost: int = 0  # tokens
    num_doubled: int = 0
    num_resumed: int = 0  # streams whose connection broke
    not_ready_after_s: float | None = None  # the first /ready that is not 200
    ready_after_s: float | None = None  # the first 200 after that
    replaced_after_s: float | None = None  # the victim is gone, or runs again


async def read_streams(
    server: Server, options: argparse.Namespace, key: str, signal_after: int, inject: Callable[[], None]
) -> list[Stream]:
    """Read all streams to their ends; `inject` is called after `signal_after` tokens."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == signal_after:
            inject()

    pool = ConnectionPool(f"unix:{server.socket}")
    streams = [Stream(index, f"{key}-{index}", options.tokens, count) for index in range(options.streams)]
    async with asyncio.timeout(ROUND_TIMEOUT_S):
        await asyncio.gather(*(stream.read(pool) for stream in streams))
    pool.close()
    return streams


async def watch(server: Server, victim: psutil.Process, found: Round, *, ends: bool) -> None:
    """Record when /ready stopped and resumed returning 200, and when the victim was gone or ran again."""
    since = time.perf_counter()
    while found.ready_after_s is None or found.replaced_after_s is None:
        ready = await is_ready(server.socket)
        now_s = time.perf_counter() - since
        if not ready and found.not_ready_after_s is None:
            found.not_ready_after_s = now_s
        if ready and found.ready_after_s is None and found.not_ready_after_s is not None:
            found.ready_after_s = now_s
        if found.replaced_after_s is None and (not victim.is_running() if ends else not is_halted(victim)):
            found.replaced_after_s = now_s
        await asyncio.sleep(READY_POLL_S)


def judge(streams: list[Stream], expected: list[Stream], found: Round) -> None:
    found.stall_s = max(stream.longest_gap_s for stream in streams)
    for stream, whole in zip(streams, expected, strict=True):
        if stream.error or stream.text != whole.text or stream.token_ids != whole.token_ids:
            found.num_wrong += 1
            print(f"# wrong stream {stream.index}: {stream.error or 'other bytes'}", file=sys.stderr)
        found.num_lost += max(0, len(whole.token_ids) - len(stream.token_ids))
        found.num_doubled += max(0, len(stream.token_ids) - len(whole.token_ids))
        found.num_resumed += stream.num_breaks > 0


async def one_round(
    server: Server, options: argparse.Namespace, role: str, number: int, rng: random.Random, expected: list[Stream]
) -> Round:
    found, watchers = Round(), []

    def inject() -> None:
        victim = server.victim(role)
        victim.send_signal(number)
        watching = watch(server, victim, found, ends=role != "supervisor")
        watchers.append(asyncio.create_task(watching))

    signal_after = rng.randrange(1, int(0.9 * options.streams * options.tokens))
    judge(await read_streams(server, options, f"{rng.random()}", signal_after, inject), expected, found)
    await wait_ready(server)
    await asyncio.wait(watchers, timeout=LAST_LOOK_S)
    for watcher in watchers:
        watcher.cancel()
    return found


async def measure(server: Server, options: argparse.Namespace) -> dict[str, list[Round]]:
    await wait_ready(server)
    expected = await read_streams(server, options, "undisturbed", 0, lambda: None)
    assert all(len(stream.token_ids) == options.tokens for stream in expected), [s.error for s in expected]
    rng = random.Random(options.seed)
    undisturbed = Round()
    judge(expected, expected, undisturbed)
    results: dict[str, list[Round]] = {"undisturbed": [undisturbed]}
    num_standbys = 1
    for name, count in [("SIGKILL", options.kills), ("SIGSTOP", options.halts)]:
        for _ in range(count):
            for role in options.victims:
                if (name, role) == ("SIGKILL", "supervisor"):  # ends the server: scripts/serving/bench_endings.py
                    continue
                await wait_for_standbys(server, num_standbys)
                num_standbys += role in USES_A_STANDBY
                number = getattr(signal, name)
                found = await one_round(server, options, role, number, rng, expected)
                results.setdefault(f"{name} {role}", []).append(found)
                print(f"# {name} {role}: {found}", file=sys.stderr)
    return results


def report(results: dict[str, list[Round]], options: argparse.Namespace) -> None:
    columns = "not ready    ready replaced   resumed  wrong  lost  doubled"
    print(f"signal                   rounds stall median     max  {columns}")
    figures: dict[str, Any] = {}
    for name, rounds in results.items():
        stalls = [found.stall_s for found in rounds]
        longest = [
            max((getattr(found, key) for found in rounds if getattr(found, key) is not None), default=None)
            for key in ("not_ready_after_s", "ready_after_s", "replaced_after_s")
        ]
        sums = [
            sum(getattr(found, key) for found in rounds)
            for key in ("num_resumed", "num_wrong", "num_lost", "num_doubled")
        ]
        shown = " ".join(f"{'-' if value is None else f'{value:.2f} s':>8s}" for value in longest)
        print(
            f"{name:24s} {len(rounds):6d} {statistics.median(stalls):10.2f} s {max(stalls):5.2f} s   {shown} "
            f"{sums[0]:9d} {sums[1]:6d} {sums[2]:5d} {sums[3]:8d}"
        )
        figures[name] = {
            "stalls_s": [round(stall, 3) for stall in stalls],
            **dict(zip(("not_ready_s", "ready_s", "replaced_s"), longest, strict=True)),
            **dict(zip(("resumed", "wrong", "lost", "doubled"), sums, strict=True)),
        }
    print(json.dumps({"bench": "recovery", "streams": options.streams, "tokens": options.tokens, "rounds": figures}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="rounds of SIGKILL per victim")
    parser.add_argument("--halts", type=int, default=3, help="rounds of SIGSTOP per victim")
    parser.add_argument("--victims", type=lambda names: names.split(","), default=["worker", "engine-core"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-log", action="store_true", help="print the server's log at the end")
    parser.add_argument("server_options", nargs="*")
    options = parser.parse_args()
    num_frontends = "2" if "frontend" in options.victims else "1"
    with tempfile.TemporaryDirectory(prefix="paged-serve-bench-") as folder:
        server = Server(folder, [*SERVER_OPTIONS, "--api-server-count", num_frontends, *options.server_options])
        try:
            results = uvloop.run(measure(server, options))
        finally:
            server.close()
            if options.keep_log:
                print(server.stderr(), file=sys.stderr)
    report(results, options)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    main()
