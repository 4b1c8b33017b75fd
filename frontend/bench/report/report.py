"""Writes results as JSON files."""

import contextlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError


def write_json(path: str | None, bench: str, config: dict[str, Any], result: Any) -> None:
    """Write one JSON object: benchmark, configuration, result, version, date and machine. Raises ConfigError."""
    if path is None:
        return
    report = {"bench": bench, **environment(), "config": config, "result": result}
    write_file(path, msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def write_file(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")


def environment() -> dict[str, Any]:
    """Version, commit, date and machine, for a result's JSON."""
    from paged_serve import __version__

    return {
        "version": __version__,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": _cpu_info("model name") or platform.processor(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "flags": [flag for flag in CPU_FLAGS if flag in (_cpu_info("flags") or _cpu_info("Features")).split()],
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "load_average": os.getloadavg()[0],
        },
    }


def _cpu_info(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def _commit() -> str:
    """The commit of the running checkout; "" for an installed package."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        if folder.parts[-3:] == ("frontend", "bench", "report") and (folder.parents[2] / ".git").exists():
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""
