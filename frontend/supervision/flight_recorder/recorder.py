"""Records the state of all processes when one is lost, before it is replaced."""

import contextlib
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from paged_serve import __version__
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.control import DescribeState
from paged_serve.protocol.process.flight_record import FLIGHT_DIR, STACKS_SIGNAL, flight_path, read_lines

from ..processes.child import Child, ChildState
from ..processes.process_table import ProcessTable
from .bundle import Bundle, ProcessReport, dump_folder, write_bundle
from .process_view import memory_of, threads_of

log = logging.getLogger(__name__)

MAX_EVENTS = 512
MAX_TEXT_BYTES = 3 << 20  # of lines and stacks, over all processes
QUIET_S = 10.0  # between two bundles without SIGUSR1
STACKS_WITHIN_S = 0.05  # recovery waits for them
STATE_WITHIN_S = 1.0  # recovery does not wait for it


@dataclass(slots=True)
class _Pending:
    bundle: Bundle
    due: float


class FlightRecorder:
    """`collect` inspects at once; `tick` writes when the core has sent its state or is late. Monotonic seconds."""

    def __init__(
        self, config: Config, run_dir: str, processes: ProcessTable, send: Callable[[Child, DescribeState], None]
    ):
        self.events: deque[str] = deque(maxlen=MAX_EVENTS)
        self._config = config
        self._run_dir = run_dir
        self._processes = processes
        self._send = send
        self._folder = dump_folder(config.server.dump_dir)
        self._pending: _Pending | None = None
        self._quiet_until = 0.0

    def note(self, event: str) -> None:
        """Record an event of a process."""
        self.events.append(f"{datetime.now(UTC).astimezone().isoformat('T', 'milliseconds')[:23]} {event}")

    def collect(self, reason: str, now: float, *, asked: bool = False) -> None:
        """Inspect every process before any is killed. Skipped within QUIET_S of the last report unless `asked`."""
        self._remove_old_records()
        if self._folder is None or not (asked or now >= self._quiet_until):
            return
        self.write()
        self._quiet_until = now + QUIET_S
        children = [*self._processes.living.values()]
        stacks = self._request_stacks(children)
        limit = MAX_TEXT_BYTES // max(1, len(children)) // 2
        reports = tuple(self._report(child, stacks.get(child.process.pid, 0), limit, now) for child in children)
        for core in self._processes.of_role("engine-core"):
            if core.state is not ChildState.DEAD:
                self._send(core, DescribeState())
        bundle = Bundle(
            reason=reason,
            written_at=time.time(),
            version=__version__,
            platform=f"Python {sys.version.split()[0]}, {platform.platform()}, {os.cpu_count()} CPUs",
            config=msgspec.Raw(self._config.for_print().encode()),
            processes=reports,
            events=tuple(self.events),
        )
        self._pending = _Pending(bundle, now + STATE_WITHIN_S)

    def receive_core_state(self, state: bytes) -> None:
        """Add the core's answer to DescribeState to the report."""
        if self._pending is not None:
            with contextlib.suppress(msgspec.DecodeError):
                msgspec.json.decode(state)
                self._pending.bundle = msgspec.structs.replace(self._pending.bundle, core_state=msgspec.Raw(state))
            self.write()

    def tick(self, now: float) -> None:
        if self._pending is not None and now >= self._pending.due:
            self.write()

    def write(self) -> None:
        """Write the collected report, with the core's state if it has arrived."""
        if self._pending is None or self._folder is None:
            return
        bundle, self._pending = self._pending.bundle, None
        try:
            path = write_bundle(bundle, self._folder)
        except OSError as error:
            log.warning("no report written in %s: %s", self._folder, error)
        else:
            log.warning("wrote a report; read it with: paged-serve doctor %s", path)

    def _request_stacks(self, children: list[Child]) -> dict[int, int]:
        """Request stacks and wait for them. Returns pid -> where the new stacks begin in the file of the process."""
        begins: dict[int, int] = {}
        for child in children:
            if child.state not in (
                ChildState.SPAWNED,
                ChildState.DEAD,
            ):  # the signal would end a process without a handler
                begins[child.process.pid] = self._stacks_bytes(child)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.process.pid, STACKS_SIGNAL)
        asked = [child for child in children if child.process.pid in begins and not child.is_stopped()]
        deadline = time.monotonic() + STACKS_WITHIN_S
        before: list[int] = []
        while time.monotonic() < deadline:
            time.sleep(0.002)
            sizes = [self._stacks_bytes(child) for child in asked]
            grown = all(size > begins[child.process.pid] for size, child in zip(sizes, asked, strict=True))
            if grown and sizes == before:
                break
            before = sizes
        return begins

    def _stacks_bytes(self, child: Child) -> int:
        try:
            return self._path(child, "stacks").stat().st_size
        except OSError:
            return 0

    def _report(self, child: Child, stacks_begin: int, limit: int, now: float) -> ProcessReport:
        pid, is_dead = child.process.pid, child.state is ChildState.DEAD
        try:
            stacks = self._path(child, "stacks").read_bytes()[stacks_begin:][:limit].decode(errors="replace")
        except OSError:
            stacks = ""
        lines = read_lines(self._path(child, "lines"))
        while lines and sum(map(len, lines)) > limit:
            lines = lines[len(lines) // 4 + 1 :]
        return ProcessReport(
            name=child.name,
            pid=pid,
            epoch=child.epoch,
            state=child.state.name.lower(),
            silence_s=max(0.0, now - child.last_heard),
            end=child.exit_reason() if is_dead or child.failure else "",
            memory={} if is_dead else memory_of(pid),
            threads=() if is_dead else threads_of(pid),
            stacks=stacks,
            lines=tuple(lines),
        )

    def _remove_old_records(self) -> None:
        """Remove records of replaced processes, which no later report describes."""
        known = {str(child.process.pid) for child in self._processes.living.values()}
        for path in (Path(self._run_dir) / FLIGHT_DIR).glob("*.*.*"):
            if path.name.split(".")[1] not in known:
                path.unlink(missing_ok=True)

    def _path(self, child: Child, kind: str) -> Path:
        return flight_path(self._run_dir, child.started_as, child.process.pid, kind)
