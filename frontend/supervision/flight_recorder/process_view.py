"""Describes a process from /proc, even when it is stuck in C code and reports nothing itself."""

from pathlib import Path

from .bundle import ThreadReport

MAX_THREADS = 64
MEMORY_FIELDS = ("State", "VmPeak", "VmHWM", "VmRSS", "RssAnon", "VmSwap", "Threads", "SigPnd", "Cpus_allowed_list")


def memory_of(pid: int) -> dict[str, str]:
    """Selected lines of /proc/PID/status; none when the process is gone."""
    fields = dict(line.split(":\t", 1) for line in _read(f"/proc/{pid}/status").splitlines() if ":\t" in line)
    return {name: fields[name].strip() for name in MEMORY_FIELDS if name in fields}


def threads_of(pid: int) -> tuple[ThreadReport, ...]:
    """Its threads, the main one first."""
    try:
        ids = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return ()
    return tuple(_thread(f"/proc/{pid}/task/{thread}") for thread in ids[:MAX_THREADS])


def _thread(path: str) -> ThreadReport:
    state = _read(f"{path}/stat").rpartition(")")[2].split()[:1]
    waits_in = _read(f"{path}/wchan").strip()
    return ThreadReport(
        name=_read(f"{path}/comm").strip(),
        state="".join(state),
        waits_in="" if waits_in == "0" else waits_in,
        kernel_stack=_read(f"{path}/stack").strip(),  # readable by root only
    )


def _read(path: str) -> str:
    """The text of a file; "" when it is gone or not readable."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
