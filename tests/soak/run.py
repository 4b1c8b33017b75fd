"""An hour of mixed traffic and faults, after which no resource may have grown.

First a warm-up, in which bounded tables fill up, and the interpreter and the allocator reach their largest size. Then
the server rests and is measured; after the remaining time it rests again, and everything must be as before.
"""

import asyncio
import time
from dataclasses import dataclass, field

from paged_serve.frontend.client.async_client import AsyncClient

from ..chaos.faults import check_no_file_is_left, check_nothing_is_left, run_dir, wait_ended
from ..chaos.streams.load import Load
from ..chaos.streams.load_requests import draw_requests
from ..chaos.streams.transports import transports
from ..end_to_end.server_process import ServerProcess
from .mixture import Mixture
from .trend import Slope, slope_per_hour
from .watch import TEMPLATES, Holding, Watch, files

OPTIONS = ("--api-server-count", "2", "--num-blocks", "600", "--max-num-batched-tokens", "256", "--resume-grace", "5")
MAX_BYTES_PER_HOUR = 1 << 20
FREE_LISTS_BYTES = 4 << 20  # CPython keeps up to 2,000 tuples of each length below 20, and takes an hour to have them
NUM_REQUESTS, MAX_TOKENS = 24, 120
REST_S = 8.0  # stored answers expire, closed connections are noticed
REST_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Soak:
    """`streams` and `places`: how many streams, and how many others, come at once."""

    minutes: float
    seed: int
    warm_up: float = 0.25  # of the time
    streams: int = 9
    places: int = 5
    sample_s: float = 2.0

    @property
    def command_line(self) -> str:
        return (
            f"python scripts/faults/soak.py --minutes {self.minutes:g} --seed {self.seed} --warm-up {self.warm_up:g} "
            f"--streams {self.streams} --places {self.places}"
        )


@dataclass(slots=True)
class Report:
    """`failures` is empty when all is well."""

    slopes: dict[tuple[str, str], Slope] = field(default_factory=dict)  # by process and figure, bytes an hour
    before: dict[str, Holding] = field(default_factory=dict)  # at rest, behind the warm-up
    after: dict[str, Holding] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        rows = [f"{'process':18s} {'RSS MB':>13s} {'MB/h':>7s} {'95 %':>15s} {'anonymous MB/h':>24s} fds threads"]
        for name, old in self.before.items():
            new = self.after.get(name, old)
            rss, anonymous = self.slopes[name, "rss"], self.slopes[name, "anonymous"]
            rows.append(
                f"{name:18s} {old.rss / 2**20:6.1f} {new.rss / 2**20:6.1f} {_shown(rss):>23s} {_shown(anonymous):>24s} "
                f"{old.fds:3d} {new.fds:3d} {old.threads:3d} {new.threads:3d}"
            )
        rows.append(", ".join(f"{name} {count}" for name, count in self.done.items()))
        return "\n".join(rows + [f"FAILED {what}" for what in self.failures[:30]])


def run(soak: Soak, server: ServerProcess) -> Report:
    """Serve, watch, stop. Raises when the server itself fails."""
    server.wait_ready()
    server.wait_for_standby()
    report = asyncio.run(_run(soak, server))
    server.process.terminate()
    if code := wait_ended(server):
        report.failures.append(f"exit code {code}")
    check_no_file_is_left(server)
    return report


async def _run(soak: Soak, server: ServerProcess) -> Report:
    requests = draw_requests(soak.seed, NUM_REQUESTS, MAX_TOKENS)
    mixture = Mixture(server.port, run_dir(server), requests, soak.seed)
    watch = Watch(server)
    report = Report()
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        load = Load(transports(server.port, client), requests, {}, soak.seed)
        await load.compute_expected()
        await mixture.learn()
        await _serve(soak, soak.warm_up * soak.minutes, load, mixture, None)
        report.before, files_before = await _at_rest(server), files(server)
        await _serve(soak, (1 - soak.warm_up) * soak.minutes, load, mixture, watch)
        report.after = await _at_rest(server, report.before)
    await check_nothing_is_left(server)
    ledger = load.ledger
    report.done = {"requests": ledger.requests, "completed": ledger.completed, "aborted": ledger.aborted}
    report.done |= {name.strip("_"): count for name, count in mixture.counts.items()}
    report.failures += [*ledger.wrong, *ledger.lost, *mixture.wrong]
    report.failures += [f"a file is left: {path}" for path in sorted(files(server) - files_before)]
    _judge(report, watch)
    return report


async def _serve(soak: Soak, minutes: float, load: Load, mixture: Mixture, watch: Watch | None) -> None:
    end = time.monotonic() + 60 * minutes
    serving = asyncio.gather(load.until(end, soak.streams), mixture.until(end, soak.places))
    while not serving.done():
        await asyncio.wait([serving], timeout=soak.sample_s)
        load.ledger.attempts.clear()  # ours must not grow, either
        if watch is not None and time.monotonic() < end:
            watch.sample()
    await serving


async def _at_rest(server: ServerProcess, before: dict[str, Holding] | None = None) -> dict[str, Holding]:
    """The resources of all processes at rest; waits a while for files and threads to be as many as `before`."""
    deadline = time.monotonic() + REST_WITHIN_S
    while True:
        await asyncio.sleep(REST_S)
        now = await asyncio.to_thread(Watch(server).sample)
        if before is None or not _more_than(before, now) or time.monotonic() > deadline:
            return now


def _more_than(before: dict[str, Holding], now: dict[str, Holding]) -> list[str]:
    """What is more, or another process; template helpers end when they are idle, and others start."""
    found = [f"{name} was not there before" for name in now.keys() - before.keys() if not name.startswith(TEMPLATES)]
    found += [f"{name} has ended" for name in before.keys() - now.keys() if not name.startswith(TEMPLATES)]
    for name in before.keys() & now.keys():
        for figure in ("fds", "threads"):
            had, has = getattr(before[name], figure), getattr(now[name], figure)
            if has > had:
                found.append(f"{name} had {had} {figure}, now {has}")
    return found


def _judge(report: Report, watch: Watch) -> None:
    for name in report.before:
        for figure in ("rss", "anonymous"):
            known = name in watch.names
            slope = slope_per_hour(watch.times, watch.series(name, figure)) if known else slope_per_hour([], [])
            report.slopes[name, figure] = slope
            grown = getattr(report.after.get(name, report.before[name]), figure) - getattr(report.before[name], figure)
            if slope.low > MAX_BYTES_PER_HOUR and grown > FREE_LISTS_BYTES:
                report.failures.append(f"{name} grows: {figure} {_shown(slope)} MB/h")
    report.failures += _more_than(report.before, report.after)


def _shown(slope: Slope) -> str:
    return f"{slope.value / 2**20:.2f} ({slope.low / 2**20:.2f}..{slope.high / 2**20:.2f})"
