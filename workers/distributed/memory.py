"""Measures the memory available on this machine or in its container."""

import contextlib
import os
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

from .control_groups import groups_of

SHARED_MEMORY = Path("/dev/shm")
NCCL_BYTES = 16 << 20  # nccl allocates segments of 10 MB, and ends the process if it cannot


def free_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping, within the limits of all control groups of this process."""
    limits = [free for folder in groups_of("memory", root) if (free := _free_in_group(folder)) is not None]
    return min([_available(root / "proc/meminfo"), *limits])


def check_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raises ConfigError if /dev/shm is too small for nccl, its only user here."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < NCCL_BYTES:
        raise ConfigError(
            f"{folder} has {free} bytes left; nccl needs {NCCL_BYTES} for several CUDA ranks. Free some space, or make "
            "it larger (docker run --shm-size=1g)"
        )


def resident_bytes() -> int:
    """Resident memory of this process, shared and mapped pages included; 0 without /proc."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The peak of this process's resident memory."""
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_group(folder: Path) -> int | None:
    """What is left of a control group's limit, the page cache that the kernel frees on demand included; None: no limit.

    Above `high`, of version 2, the kernel slows processes down so much that it counts as a limit, too.
    """
    limits = _numbers(folder, "memory.max", "memory.high", "memory.limit_in_bytes")
    used = _numbers(folder, "memory.current", "memory.usage_in_bytes")
    if not limits or not used:
        return None
    return max(0, min(limits) - used[0] + _page_cache(folder / "memory.stat"))


def _numbers(folder: Path, *names: str) -> list[int]:
    """The numbers in those of these files that exist and contain one, not "max"."""
    found = []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            found.append(int((folder / name).read_text()))
    return found


def _page_cache(path: Path) -> int:
    """Bytes of files in the memory of a group; in version 1 the totals include the groups below, as in version 2."""
    try:
        found = dict(line.split() for line in path.read_text().splitlines())
    except OSError:
        return 0
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in ("inactive_file", "active_file"))
