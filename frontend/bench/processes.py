"""The processes of one server and their memory, from /proc."""

import contextlib
from pathlib import Path

from ..supervision.processes.child import MODULES

_ROLES = {module.encode(): role for role, module in MODULES.items()}


def processes_of(supervisor_pid: int) -> dict[str, int]:
    """Process ids by name: the supervisor and the children it has now."""
    found = {"supervisor": supervisor_pid}
    for pid in children_of(supervisor_pid):
        words = _words(pid)
        role = next((_ROLES[word] for word in words if word in _ROLES), None)
        if role == "standby" and _has_name(pid, "worker"):  # a standby worker that became a worker
            role = "worker"
        if role is not None:
            index = words[words.index(b"--index") + 1].decode()
            found[role if role == "engine-core" else f"{role} {index}"] = pid
    return found


def children_of(pid: int) -> list[int]:
    """The children of all threads of `pid`."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie, which its new parent has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_bytes(pid: int) -> dict[str, int]:
    """`rss`, and `pss`, which counts 1/n of each page that n processes share."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name.lower()] = int(value.split()[0]) * 1024
    return found


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _has_name(pid: int, role: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(role)
    except OSError:
        return False
