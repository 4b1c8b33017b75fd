"""Detects that the kernel killed processes for lack of memory: a SIGKILL may then be the fault of a request."""

from pathlib import Path

LOOK_EVERY_S = 5.0


class OutOfMemory:
    """Covers the last `LOOK_EVERY_S` to twice that. The kernel counts for the whole machine, containers included."""

    def __init__(self, vmstat: Path = Path("/proc/vmstat"), now: float = 0.0):
        self._vmstat = vmstat
        self._before = self._seen = self._count()
        self._next_look = now + LOOK_EVERY_S

    def tick(self, now: float) -> None:
        """Start a new interval when it is time, so that old shortages do not count. `now` in monotonic seconds."""
        if now >= self._next_look:
            self._before, self._seen = self._seen, self._count()
            self._next_look = now + LOOK_EVERY_S

    @property
    def is_known(self) -> bool:
        return self._count() > self._before

    def ran_out(self) -> bool:
        """Whether memory ran out; True only once for each shortage."""
        is_known = self.is_known
        self._before = self._seen = self._count()
        return is_known

    def _count(self) -> int:
        try:
            fields = dict(line.split() for line in self._vmstat.read_text().splitlines())
            return int(fields.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0
