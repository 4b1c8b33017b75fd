"""How much memory this machine, or the container we run in, can still give."""

import os
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
NCCL_BYTES = 16 << 20  # its segments have ten megabytes, and it ends a process that cannot have one


def free_host_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Bytes that can be allocated without swapping; a container has its own limit."""
    free = _available(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _reclaimable(cgroup / "memory.stat")))
    return free


def check_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raises ConfigError when nccl's ranks could not meet there. Nothing else of ours uses it."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < NCCL_BYTES:
        raise ConfigError(
            f"{folder} has {free} bytes left; nccl needs {NCCL_BYTES} for several CUDA ranks. Make room there, or give "
            "the container more (docker run --shm-size=1g)"
        )


def resident_bytes() -> int:
    """Memory that this process holds now, shared and mapped pages included; 0 where /proc does not show it."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The most that it ever held."""
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
    """The file's one number; None when there is no file or it holds "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path) -> int:
    """The page cache that counts as used but goes when it is needed."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
