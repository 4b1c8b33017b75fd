"""The CPU quota of the container that this process runs in."""

from pathlib import Path

from .control_groups import groups_of


def quota_of_cpus(root: Path = Path("/")) -> int | None:
    """The number of CPUs whose time this process may use; None: no limit. More threads would wait for each other.

    This is the lowest quota of the process's control group and its visible ancestors, in both versions.
    """
    quotas = [quota for folder in groups_of("cpu", root) if (quota := _quota(folder)) is not None]
    return max(1, int(min(quotas))) if quotas else None


def _quota(folder: Path) -> float | None:
    """The quota of one group, in CPUs."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such controller here, or "max"
        return None
