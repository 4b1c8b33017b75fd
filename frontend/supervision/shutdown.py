"""The phases of the service, and the schedule by which it stops its processes."""

import enum

from paged_serve.protocol.state_machine import fire


class Phase(enum.Enum):
    STARTING = enum.auto()
    SERVING = enum.auto()
    DRAINING = enum.auto()  # the frontends take no new requests and finish those accepted
    DRAINING_ENGINE = enum.auto()  # the same for the engine's other clients
    STOPPING = enum.auto()
    ENDED = enum.auto()


class PhaseEvent(enum.Enum):
    READY = enum.auto()
    DRAIN = enum.auto()
    FRONTENDS_DRAINED = enum.auto()
    STOP = enum.auto()
    GONE = enum.auto()  # no process is left


TRANSITIONS = {
    (Phase.STARTING, PhaseEvent.READY): Phase.SERVING,
    (Phase.STARTING, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.SERVING, PhaseEvent.DRAIN): Phase.DRAINING,
    (Phase.SERVING, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.DRAINING, PhaseEvent.FRONTENDS_DRAINED): Phase.DRAINING_ENGINE,
    (Phase.DRAINING, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.DRAINING_ENGINE, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.STOPPING, PhaseEvent.STOP): Phase.STOPPING,  # with a shorter deadline
    (Phase.STOPPING, PhaseEvent.GONE): Phase.ENDED,
}


class StopStep(enum.Enum):
    ASK_FRONTENDS = enum.auto()  # Stop on the control link; first, as they would report the engine's end as a failure
    ASK_ALL = enum.auto()  # Stop to all other processes
    TERMINATE = enum.auto()  # SIGTERM
    KILL = enum.auto()  # SIGKILL
    ABANDON = enum.auto()  # give up: the processes that are left are stuck in the kernel


SCHEDULE_S = {  # seconds after the stop began
    StopStep.ASK_FRONTENDS: 0.0,
    StopStep.ASK_ALL: 0.5,
    StopStep.TERMINATE: 2.0,
    StopStep.KILL: 3.0,
    StopStep.ABANDON: 8.0,
}


class Shutdown:
    """The phase of the service, and the times at which the steps of a stop are due. The time is always an argument."""

    def __init__(self, drain_timeout_s: float):
        self.phase = Phase.STARTING
        self._drain_timeout_s = drain_timeout_s
        self._drain_ends = 0.0
        self._stop_began = 0.0
        self._taken: set[StopStep] = set()

    @property
    def is_draining(self) -> bool:
        return self.phase in (Phase.DRAINING, Phase.DRAINING_ENGINE)

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.STOPPING, Phase.ENDED)

    def fire(self, event: PhaseEvent) -> None:
        self.phase = fire(TRANSITIONS, self.phase, event, "service")

    def begin_drain(self, now: float) -> None:
        self.fire(PhaseEvent.DRAIN)
        self._drain_ends = now + self._drain_timeout_s

    def begin_stop(self, now: float, *, at_once: bool) -> None:
        """`at_once`: kill without asking."""
        self.fire(PhaseEvent.STOP)
        self._stop_began = now - (SCHEDULE_S[StopStep.KILL] if at_once else 0.0)
        if at_once:
            self._taken |= {StopStep.ASK_FRONTENDS, StopStep.ASK_ALL, StopStep.TERMINATE}

    def drain_is_over(self, now: float) -> bool:
        return self.is_draining and now >= self._drain_ends

    def steps_due(self, now: float, *, frontends_gone: bool) -> list[StopStep]:
        """The steps that have become due since the last call."""
        if self.phase is not Phase.STOPPING:
            return []
        due = {step for step, after in SCHEDULE_S.items() if now - self._stop_began >= after}
        if frontends_gone:
            due.add(StopStep.ASK_ALL)
        fresh = [step for step in StopStep if step in due - self._taken]
        self._taken |= due
        return fresh

    def next_deadline(self, now: float) -> float:
        """Seconds until the next step may be due."""
        if self.is_draining:
            return max(0.0, self._drain_ends - now)
        waiting = [self._stop_began + after - now for step, after in SCHEDULE_S.items() if step not in self._taken]
        return max(0.0, min(waiting)) if self.phase is Phase.STOPPING and waiting else float("inf")
