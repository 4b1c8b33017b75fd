"""The resources of one server's processes, sample by sample."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..end_to_end.server_process import ServerProcess

TEMPLATES = "templates"  # the name of their helpers here


@dataclass(frozen=True, slots=True)
class Holding:
    """The resources of one process. `anonymous`: bytes of `rss` that belong to no file; leaks are among these."""

    rss: int
    pss: int
    anonymous: int
    fds: int
    threads: int


@dataclass(slots=True)
class Watch:
    """Samples of all processes that live from the first sample to the last; times are `time.monotonic` seconds."""

    server: ServerProcess
    times: list[float] = field(default_factory=list)
    samples: list[dict[str, Holding]] = field(default_factory=list)

    def sample(self) -> dict[str, Holding]:
        now = {}
        for name, process in processes(self.server):
            with contextlib.suppress(psutil.Error, OSError):
                now[name] = holding(process)
        self.times.append(time.monotonic())
        self.samples.append(now)
        return now

    def series(self, name: str, figure: str) -> list[float]:
        return [float(getattr(sample[name], figure)) for sample in self.samples]

    @property
    def names(self) -> list[str]:
        """Of those that are in every sample."""
        return sorted(set.intersection(*map(set, self.samples)))


def processes(server: ServerProcess) -> Iterator[tuple[str, psutil.Process]]:
    """The supervisor and all below it, by the names they gave themselves and, should two have one, their pids."""
    supervisor = psutil.Process(server.process.pid)
    yield "supervisor", supervisor
    for child in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_template = any("template_process" in word for word in child.cmdline())
            yield f"{TEMPLATES if is_template else child.name()} {child.pid}", child


def holding(process: psutil.Process) -> Holding:
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    return Holding(
        rss=kilobytes["Rss"] << 10,
        pss=kilobytes["Pss"] << 10,
        anonymous=kilobytes["Anonymous"] << 10,
        fds=process.num_fds(),
        threads=process.num_threads(),
    )


def files(server: ServerProcess) -> set[str]:
    """Files in the run directory, and shared memory that any of the processes has mapped or open."""
    found = {str(path) for path in server.temporary.rglob("*")}
    return found.union(*(shared_memory(process) for _, process in processes(server)))


def shared_memory(process: psutil.Process) -> set[str]:
    with contextlib.suppress(psutil.Error, OSError):
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        return {path for path in (*re.findall(r"/\S+", maps), *opened) if path.startswith("/dev/shm/")}
    return set()
