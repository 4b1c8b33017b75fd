"""The control groups that limit this process, in both versions, wherever a host or a container mounts them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Controller = Literal["cpu", "memory"]


class Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    group: str  # the group at its top
    folder: Path
    kind: str  # cgroup, cgroup2
    controllers: list[str]  # of version 1


def groups_of(controller: Controller, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's control groups and of their visible ancestors: a limit of any of them applies.

    A host may have either version or both, and a container may see the host's group names or its own.
    """
    lines = _lines(root / "proc/self/cgroup")
    mounts = [mount for line in _lines(root / "proc/self/mountinfo") if (mount := _mount(line))]
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for mount in mounts:
            is_its = mount.kind == "cgroup2" if controllers == "" else controller in mount.controllers
            if is_its and (controllers == "" or controller in controllers.split(",")):
                top = root / mount.folder.relative_to("/")
                below = _below(group, mount.group)
                yield from (top.joinpath(*below[:depth]) for depth in range(len(below) + 1))


def _lines(path: Path) -> list[str]:
    """The lines of a file below /proc, with paths as the system calls take them; none if there is no such file."""
    try:
        return [os.fsdecode(line) for line in path.read_bytes().split(b"\n") if line]
    except OSError:
        return []


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
