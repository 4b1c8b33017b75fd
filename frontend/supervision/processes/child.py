"""One process that the supervisor has started: how it is spawned, what it has reported, how it ended."""

import contextlib
import enum
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paged_serve.protocol.process.lifeline import is_at_work, is_stopped, lifeline_pipe
from paged_serve.protocol.state_machine import fire

from ...python_command import python_command

if TYPE_CHECKING:
    from paged_serve.protocol.messages.control import Progress

Role = Literal["engine-core", "worker", "frontend", "standby"]
MODULES: dict[Role, str] = {
    "engine-core": "paged_serve.engine_core.process",
    "worker": "paged_serve.workers.process",
    "frontend": "paged_serve.frontend.http.server",
    "standby": "paged_serve.workers.process.standby",
}

# Return codes caused by a signal from outside; 0: the child stopped on SIGTERM.
OUTSIDE = {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}


class ChildState(enum.Enum):
    SPAWNED = enum.auto()
    GREETED = enum.auto()  # it has its Welcome and is loading
    READY = enum.auto()  # its loop runs; silence now means that it hangs
    DRAINED = enum.auto()
    DEAD = enum.auto()


class ChildEvent(enum.Enum):
    HELLO = enum.auto()
    READY = enum.auto()
    DRAINED = enum.auto()
    PROMOTED = enum.auto()  # a standby worker has become a worker
    DEATH = enum.auto()


TRANSITIONS = {
    (ChildState.SPAWNED, ChildEvent.HELLO): ChildState.GREETED,
    (ChildState.GREETED, ChildEvent.READY): ChildState.READY,
    (ChildState.READY, ChildEvent.READY): ChildState.READY,  # a core sends it again after each new worker group
    (ChildState.DRAINED, ChildEvent.READY): ChildState.DRAINED,
    (ChildState.GREETED, ChildEvent.DRAINED): ChildState.DRAINED,
    (ChildState.READY, ChildEvent.DRAINED): ChildState.DRAINED,
    (ChildState.READY, ChildEvent.PROMOTED): ChildState.GREETED,
    (ChildState.SPAWNED, ChildEvent.DEATH): ChildState.DEAD,
    (ChildState.GREETED, ChildEvent.DEATH): ChildState.DEAD,
    (ChildState.READY, ChildEvent.DEATH): ChildState.DEAD,
    (ChildState.DRAINED, ChildEvent.DEATH): ChildState.DEAD,
    (ChildState.DEAD, ChildEvent.READY): ChildState.DEAD,  # its end was noticed before its message
    (ChildState.DEAD, ChildEvent.DRAINED): ChildState.DEAD,
}


@dataclass(frozen=True, slots=True)
class StartInfo:
    """The settings with which every child of a run is started."""

    run_dir: str
    environment: Mapping[str, str]
    http_fd: int  # the listening HTTP socket; -1 without frontends
    modules: Mapping[Role, str]

    def command(self, role: Role, index: int, epoch: int, inherited: Sequence[int]) -> list[str]:
        options = ["--run-dir", self.run_dir, "--index", str(index), "--epoch", str(epoch)]
        for name, descriptor in zip(("--lifeline-fd", "--http-fd"), inherited, strict=False):
            options += [name, str(descriptor)]
        return python_command(self.modules[role], *options)


@dataclass(slots=True, eq=False)
class Child:
    """A process, its handles, and what it has reported on the control link. Times are `time.monotonic` seconds."""

    role: Role
    index: int
    epoch: int
    process: subprocess.Popen[bytes]
    pidfd: int  # readable when the process has ended; -1 after `reap`
    lifeline_fd: int  # write end: the kernel kills the child when this only copy closes
    last_heard: float
    started_as: str = ""  # the name of its files in the run directory
    state: ChildState = ChildState.SPAWNED
    peer: bytes = b""  # its identity on the control socket, from its Hello on
    failure: str = ""  # reported by the child, or why the supervisor gave it up
    memory_ran_out: bool = False  # at the time it was killed
    hangs_in_load: bool = False
    progress: "Progress | None" = None
    facts: dict[str, str] = field(default_factory=dict)
    asleep_since: float | None = None  # `last_heard`, if all its threads slept when the hang detector last looked
    turn: int = 0  # IsolationTurn of a core that computes candidates one by one
    has_workers: bool = True  # of a core: they are ready

    @classmethod
    def spawn(cls, role: Role, index: int, epoch: int, start: "StartInfo", now: float) -> "Child":
        """Start the role's module in its own session, so that ctrl-C reaches only the supervisor."""
        lifeline_read, lifeline_write = lifeline_pipe()
        inherited = [lifeline_read, start.http_fd] if role == "frontend" else [lifeline_read]
        try:
            process = subprocess.Popen(
                start.command(role, index, epoch, inherited),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout belongs to the caller of the supervisor
                pass_fds=inherited,
                start_new_session=True,
                env=start.environment,
            )
        except OSError:
            os.close(lifeline_write)
            raise
        finally:
            os.close(lifeline_read)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # too many open files; it must not greet a supervisor that does not know it
            process.kill()
            process.wait()
            os.close(lifeline_write)
            raise
        return cls(role, index, epoch, process, pidfd, lifeline_write, now, f"{role}-{index}")

    @property
    def name(self) -> str:
        return self.role if self.role == "engine-core" else f"{self.role} {self.index}"

    def fire(self, event: ChildEvent) -> None:
        self.state = fire(TRANSITIONS, self.state, event, self.name)

    def signal(self, number: int) -> None:
        """Send a signal to the child and its own children; does nothing when it has ended."""
        if self.state is not ChildState.DEAD:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def reap(self, timeout_s: float | None = None) -> None:
        """Collect a child that has ended and close its handles; its own children end with it."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        self.fire(ChildEvent.DEATH)
        os.close(self.pidfd)
        os.close(self.lifeline_fd)
        self.pidfd = self.lifeline_fd = -1

    def promote(self, epoch: int) -> None:
        """Turn a warm standby worker into the worker of its rank; the caller sends it Promote."""
        self.fire(ChildEvent.PROMOTED)
        self.role, self.epoch = "worker", epoch

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it; its silence is then not a long step."""
        return is_stopped(self.process.pid)

    def is_at_work(self) -> bool:
        """Whether any of its threads computes, or waits for a core or a disk."""
        return is_at_work(self.process.pid)

    def ended_from_outside(self) -> bool:
        """Whether a signal from outside, not a fault of the process, has halted or ended it, reaped or not."""
        code = self._exit_code()
        return code in OUTSIDE if code is not None else self.is_stopped()

    def was_killed(self) -> bool:
        """Whether SIGKILL has ended it, as the kernel does when memory runs out; reaped or not."""
        return self._exit_code() == -signal.SIGKILL

    def _exit_code(self) -> int | None:
        """The exit code, negative for a signal, reaped or not; None while it runs."""
        code = self.process.returncode
        if code is None and self.pidfd >= 0:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return code

    def exit_reason(self) -> str:
        """How the child ended and why: its own report if there is one, else its exit status."""
        process = f"{self.name} (pid {self.process.pid})"
        if self.failure:
            return f"{process}: {self.failure}"
        code = self._exit_code()
        if code is not None and code < 0:
            hint = "; the kernel has just ended processes because memory ran out" if self.memory_ran_out else ""
            return f"{process} was killed by {signal.Signals(-code).name}{hint}"
        return f"{process} ended with exit code {code}"
