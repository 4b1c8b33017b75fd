"""The CPU quota of the container that this process runs in."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    group: str  # the group at its top
    folder: Path
    kind: str  # cgroup, cgroup2
    controllers: list[str]  # of version 1


def quota_of_cpus(root: Path = Path("/")) -> int | None:
    """The number of CPUs whose time this process may use; None: no limit. More threads would wait for each other.

    This is the lowest quota of the process's control group and its visible ancestors, in both versions of control
    groups: a host may have either or both, mounted anywhere, and a container may see the host's group names or its own.
    """
    quotas = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
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


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of their ancestors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = [mount for line in (root / "proc/self/mountinfo").read_text().splitlines() if (mount := _mount(line))]
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for mount in mounts:
            is_its = mount.kind == "cgroup2" if controllers == "" else "cpu" in mount.controllers
            if is_its and (controllers == "" or "cpu" in controllers.split(",")):
                top = root / mount.folder.relative_to("/")
                below = _below(group, mount.group)
                yield from (top.joinpath(*below[:depth]) for depth in range(len(below) + 1))


def _below(group: str, top: str) -> tuple[str, ...]:
    """The path from the group at a mount's top down to `group`; empty when the top is this process's own group."""
    path = Path(group)
    return path.relative_to(top).parts if path.is_relative_to(top) and ".." not in path.parts else ()


def _mount(line: str) -> Mount | None:
    """The mount in a line of mountinfo; None unless it is a mount of control groups."""
    place, _, source = line.partition(" - ")
    fields, (kind, *rest) = place.split(), source.split() or [""]
    if kind not in ("cgroup", "cgroup2") or len(fields) < 5:
        return None
    return Mount(fields[3], Path(fields[4]), kind, rest[-1].split(",") if kind == "cgroup" and rest else [])
