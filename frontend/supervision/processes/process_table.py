"""The required processes: running, killed but not yet gone, or waiting to start until their predecessor is gone."""

import logging
import signal
from collections.abc import Iterable

from .child import Child, ChildState, Role, StartInfo

log = logging.getLogger(__name__)

Slot = tuple[Role, int]

START_WITHIN_S = 30.0  # a process that the kernel refuses to start is tried again for so long


def by_cause(lost: list[Child]) -> list[Child]:
    """Sort causes before consequences.

    The core comes first, because its loss ends its workers; then killed processes, because the other ranks fail when
    one is killed.
    """
    return sorted(lost, key=lambda child: (child.role != "engine-core", (child.process.returncode or 0) >= 0))


class ProcessTable:
    """Tracks children; Recovery decides when to replace one."""

    def __init__(self, start: StartInfo):
        self.living: dict[Slot, Child] = {}  # includes a child that ended until it is replaced
        self._start = start
        self._doomed: list[Child] = []
        self._missing: dict[Slot, int] = {}  # slot -> epoch to start it with
        self._refused_since: dict[Slot, float] = {}  # missing processes that the kernel has refused to start
        self._by_peer: dict[bytes, Child] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every process has been started and none is ending."""
        return not self._missing and not self._doomed

    @property
    def is_empty(self) -> bool:
        return not self._doomed and all(child.state is ChildState.DEAD for child in self.living.values())

    def is_current(self, child: Child) -> bool:
        """Whether `child` has not been replaced or dismissed yet."""
        return self.living.get((child.role, child.index)) is child

    def of_role(self, *roles: Role) -> list[Child]:
        return [child for child in self.living.values() if child.role in roles]

    def unfinished(self) -> list[Child]:
        """All children whose process still exists."""
        return [child for child in (*self.living.values(), *self._doomed) if child.state is not ChildState.DEAD]

    def handles(self) -> list[int]:
        """Descriptors that become readable when a process ends."""
        return [child.pidfd for child in self.unfinished()]

    def of_peer(self, peer: bytes) -> Child | None:
        """The child with this identity, which may have ended since; None for a stranger."""
        return self._by_peer.get(peer)

    def introduce(self, child: Child, peer: bytes) -> None:
        child.peer = peer
        self._by_peer[peer] = child

    def spawn(self, slot: Slot, epoch: int, now: float) -> None:
        self.living[slot] = Child.spawn(*slot, epoch, self._start, now)

    def replace(self, children: Iterable[Child], epoch: int) -> None:
        """Kill `children`; `spawn_missing` starts their successors with `epoch`."""
        for child in children:
            self.dismiss(child)
            self._missing[child.role, child.index] = epoch

    def start_with(self, role: Role, epoch: int) -> None:
        """Set the epoch of the processes of `role` that are still to be started."""
        self._missing |= {slot: epoch for slot in self._missing if slot[0] == role}

    def dismiss(self, child: Child) -> None:
        """Kill `child` without a successor."""
        del self.living[child.role, child.index]
        if child.state is ChildState.DEAD:
            self._by_peer.pop(child.peer, None)
        else:
            child.signal(signal.SIGKILL)
            self._doomed.append(child)

    def spawn_missing(self, now: float) -> list[Child]:
        """Start the missing processes of each role once all predecessors are gone, which frees the device's memory.

        A warm standby worker takes the place of a missing worker. Returns the standby workers used: the caller sends
        them Promote. A process that the kernel refuses to start stays missing; raises OSError after START_WITHIN_S.
        """
        leaving, promoted = {child.role for child in self._doomed}, []
        for slot in [slot for slot in self._missing if slot[0] not in leaving]:
            epoch = self._missing.pop(slot)
            standby = self.living.get(("standby", slot[1])) if slot[0] == "worker" else None
            if standby is not None and standby.state is ChildState.READY:
                del self.living["standby", standby.index]
                standby.promote(epoch)
                self.living[slot] = standby
                promoted.append(standby)
                continue
            if standby is not None:  # it would only take a core from the process that is needed now
                self.dismiss(standby)
            self._try_to_spawn(slot, epoch, now)
        return promoted

    def _try_to_spawn(self, slot: Slot, epoch: int, now: float) -> None:
        try:
            self.spawn(slot, epoch, now)
            self._refused_since.pop(slot, None)
        except OSError as error:  # too many processes or open files, or no memory
            self._missing[slot] = epoch
            if slot not in self._refused_since:
                log.warning("cannot start %s %d now reason=%s", *slot, error)
            if now - self._refused_since.setdefault(slot, now) > START_WITHIN_S:
                raise OSError(f"cannot start {slot[0]} {slot[1]}: {error}") from error

    def drop_missing(self) -> None:
        self._missing.clear()

    def reap(self, readable: Iterable[int]) -> list[Child]:
        """Collect children whose handles are in `readable`. Returns unexpected ends, in the order of `by_cause`."""
        ended = [child for child in self.unfinished() if child.pidfd in readable]
        for child in ended:
            child.reap()
            if child in self._doomed:
                self._by_peer.pop(child.peer, None)
        self._doomed = [child for child in self._doomed if child.state is not ChildState.DEAD]
        return by_cause([child for child in ended if self.is_current(child)])

    def abandon(self, child: Child) -> None:
        """Kill `child` and close its handles, even when the kernel cannot end it."""
        child.reap(timeout_s=1.0)
        self._doomed = [child for child in self._doomed if child.state is not ChildState.DEAD]
