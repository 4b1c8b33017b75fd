"""Whether the kernel has ended processes because memory ran out: then SIGKILL may be a request's doing."""

from pathlib import Path


class MemoryShortage:
    """`struck`: since the last call. The kernel counts for the whole machine, containers included."""

    def __init__(self, vmstat: Path = Path("/proc/vmstat")):
        self._vmstat = vmstat
        self._seen = self._count()

    def struck(self) -> bool:
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        try:
            fields = dict(line.split() for line in self._vmstat.read_text().splitlines())
            return int(fields.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0
