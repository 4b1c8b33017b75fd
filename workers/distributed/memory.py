"""Measures the memory available on this machine or in its container."""

import os
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
NCCL_BYTES = 16 << 20  # nccl allocates segments of 10 MB, and ends the process if it cannot


def free_host_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Bytes that can be allocated without swapping, within the container's limit."""
    free = _available(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _reclaimable(cgroup / "memory.stat")))
    return free


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


def _number(path: Path) -> int | None:
    """The number in the file; None if there is no file or it contains "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path) -> int:
    """Bytes of page cache that count as used but are freed on demand."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
