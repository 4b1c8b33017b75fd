"""Measure how long processes of a server remain after it was ended.

    python scripts/serving/bench_endings.py [--runs 10]

Each run starts a real server with the demo model. It is ended by SIGKILL of the supervisor, idle, under load, and with
all children stopped; by SIGKILL of a frontend, which must also end its helper (it renders chat templates); by SIGTERM,
idle and with a drain under load; or by one worker death more than the restart budget allows. Measured are the exit code
and the time from the signal, or from the exit of the frontend's process, until the last process is gone, polled every
half millisecond (a zombie counts as gone: only its new parent has not reaped it). The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from resumed_streams import Stream
from server_under_test import Server, wait_for_standbys, wait_ready

from paged_serve.frontend.bench.load.http_connection import ConnectionPool
from paged_serve.frontend.bench.processes import children_of, is_alive

LOOK_EVERY_S = 0.0005
GONE_WITHIN_S = 60.0
NUM_STREAMS = 16


@dataclass(frozen=True, slots=True)
class End:
    """`seconds`: from the signal until no process was left."""

    seconds: float
    exit_code: int


def until_gone(pids: list[int], since: float) -> float:
    """Seconds from `since` until none of the processes is left."""
    while any(map(is_alive, pids)):
        if time.perf_counter() - since > GONE_WITHIN_S:
            raise SystemExit(f"still running: {[pid for pid in pids if is_alive(pid)]}")
        time.sleep(LOOK_EVERY_S)
    return time.perf_counter() - since


def end_by(server: Server, number: int) -> End:
    """Signal the supervisor, and measure the time until no process is left."""
    processes = [pid for pid in server.processes() if pid != server.process.pid]
    began = time.perf_counter()
    server.process.send_signal(number)
    code = server.process.wait(GONE_WITHIN_S)
    return End(until_gone(processes, began), code)


def killed(server: Server) -> End:
    return end_by(server, signal.SIGKILL)


def killed_with_children_stopped(server: Server) -> End:
    for pid in children_of(server.process.pid):
        os.kill(pid, signal.SIGSTOP)
    return killed(server)


def killed_under_load(server: Server) -> End:
    with Load(server):
        return killed(server)


def frontend_killed(server: Server) -> End:
    frontend = server.victim("frontend")
    helpers = children_of(frontend.pid)
    if not helpers:
        raise SystemExit("the frontend has no helper")
    began = time.perf_counter()
    frontend.kill()
    seconds = until_gone([frontend.pid, *helpers], began)
    return End(seconds, end_by(server, signal.SIGTERM).exit_code)


def stopped(server: Server) -> End:
    return end_by(server, signal.SIGTERM)


def drained(server: Server) -> End:
    with Load(server, num_tokens=100):
        return end_by(server, signal.SIGTERM)


def out_of_budget(server: Server) -> End:
    """The supervisor ends by itself; measured from the signal to the worker."""
    processes = [pid for pid in server.processes() if pid != server.process.pid]
    began = time.perf_counter()
    server.victim("worker").kill()
    code = server.process.wait(GONE_WITHIN_S)
    return End(until_gone(processes, began), code)


ENDINGS: dict[str, tuple[Callable[[Server], End], tuple[str, ...], int]] = {  # function, server options, exit code
    "SIGKILL, idle": (killed, (), -signal.SIGKILL),
    "SIGKILL, children halted": (killed_with_children_stopped, (), -signal.SIGKILL),
    "SIGKILL, under load": (killed_under_load, (), -signal.SIGKILL),
    "SIGKILL of a frontend": (frontend_killed, (), 0),
    "SIGTERM, idle": (stopped, (), 0),
    "SIGTERM, under load": (drained, (), 0),
    "no restart is left": (out_of_budget, ("--max-restarts", "0"), 1),
}


class Load:
    """Runs streams in a thread; the block starts when each stream has its first token."""

    def __init__(self, server: Server, num_tokens: int = 1500):
        self._begun = threading.Semaphore(0)
        make = lambda index: Stream(index, f"load-{index}", num_tokens, self._begun.release)  # noqa: E731
        self._streams = [make(index) for index in range(NUM_STREAMS)]
        self._server = server
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()))
        self._over = threading.Event()

    async def _read(self) -> None:
        pool = ConnectionPool(f"unix:{self._server.socket}")
        reading = [asyncio.create_task(stream.read(pool)) for stream in self._streams]
        while not self._over.is_set() and not all(task.done() for task in reading):
            await asyncio.sleep(0.01)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        while not all(stream.times for stream in self._streams):
            self._begun.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def one_run(name: str) -> End:
    end, options, expected_code = ENDINGS[name]
    with tempfile.TemporaryDirectory(prefix="paged-serve-bench-") as folder:
        server = Server(folder, ["--dump-dir", "none", *options])
        try:
            asyncio.run(wait_ready(server))
            asyncio.run(wait_for_standbys(server, 1))
            found = end(server)
            if found.exit_code != expected_code:
                raise SystemExit(f"{name}: exit code {found.exit_code}, not {expected_code}\n{server.stderr()}")
            return found
        finally:
            server.process.kill()
            server.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", action="append", choices=[*ENDINGS], help="measure only this ending; repeatable")
    options = parser.parse_args()
    figures = {}
    print("ending                       runs  median     max  exit code")
    for name in options.only or ENDINGS:
        ends = [one_run(name) for _ in range(options.runs)]
        seconds = [end.seconds for end in ends]
        print(
            f"{name:26s} {len(ends):6d} {1000 * statistics.median(seconds):4.0f} ms {1000 * max(seconds):4.0f} ms "
            f"{ends[0].exit_code:10d}",
            flush=True,
        )
        figures[name] = [round(each, 4) for each in seconds]
    print(json.dumps({"bench": "endings", "seconds": figures}))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    sys.exit(main())
