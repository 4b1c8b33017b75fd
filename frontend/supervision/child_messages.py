"""Handles the messages of children on the control socket: greetings, readiness, progress, failure_reports."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.control import (
    Drain,
    Drained,
    Failed,
    FileStamp,
    FromChild,
    HasWorkers,
    Heartbeat,
    IsolatesCandidates,
    IsolationRecorded,
    PoisonEnded,
    Progress,
    Ready,
    ReportAsked,
    State,
    Welcome,
    WorkersLost,
    WorkersReplaced,
)
from paged_serve.protocol.messages.message import Hello, Refused
from paged_serve.protocol.state_machine import IllegalTransition

from .flight_recorder.recorder import FlightRecorder
from .processes.child import Child, ChildEvent, Role
from .processes.process_table import ProcessTable
from .recovery import Recovery
from .shutdown import Phase, Shutdown

if TYPE_CHECKING:
    from .control_link import ControlLink

log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]  # the stage of loading; done and total, summed over all processes

DRAINED_IN: dict[Role, tuple[Phase, ...]] = {
    "frontend": (Phase.DRAINING, Phase.DRAINING_ENGINE),
    "engine-core": (Phase.DRAINING_ENGINE,),
}


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A child's report that it, or the group that it leads, cannot continue."""

    child: Child
    refused: bool = False  # a restart will not help
    lost_workers: WorkersLost | None = None  # the child is a core, and it is the workers that cannot


class ChildMessages:
    """Records the reports of children in their Child, and returns failure_reports to act on."""

    def __init__(
        self,
        config: Config,
        processes: ProcessTable,
        link: "ControlLink",
        recovery: Recovery,
        shutdown: Shutdown,
        recorder: FlightRecorder,
        files: tuple[FileStamp, ...] = (),
    ):
        """`files`: those that results depend on, as they were before the first process started."""
        self._config = config
        self._processes = processes
        self._link = link
        self._recovery = recovery
        self._shutdown = shutdown
        self._recorder = recorder
        self._files = files

    def read(self, now: float, on_progress: OnProgress | None) -> list[FailureReport]:
        """Handle the messages since the last call."""
        failure_reports: list[FailureReport] = []
        for peer, message in self._link.received():
            child = self._processes.of_peer(peer)
            try:
                if child is not None and (self._processes.is_current(child) or isinstance(message, Failed)):
                    child.last_heard = now
                    failure_reports += self._handle(child, message, now)
                elif child is None and isinstance(message, Hello):
                    self._greet(peer, message, now)
            except IllegalTransition as error:
                log.error("protocol broken process=%s error=%s", peer, error)
                if child is not None:
                    child.failure = f"broke the protocol: {error}"
                    failure_reports.append(FailureReport(child))
            if on_progress and isinstance(message, Progress) and self._shutdown.phase is Phase.STARTING:
                self._report_progress(message.text, on_progress)
        return failure_reports

    def _greet(self, peer: bytes, hello: Hello, now: float) -> None:
        child = next((c for c in self._processes.living.values() if c.process.pid == hello.pid), None)
        if child is None or (child.role, child.index, child.epoch) != (hello.role, hello.index, hello.epoch):
            reason = f"no {hello.role} {hello.index} of epoch {hello.epoch} with pid {hello.pid} was started here"
        else:
            reason = self._link.reason_to_refuse(hello)
        if child is None or reason:
            log.warning("refused an unknown process peer=%s reason=%s", peer, reason)
            self._link.send(peer, Refused(reason))
            return
        child.fire(ChildEvent.HELLO)
        self._recorder.note(f"greeted {child.name} pid={hello.pid} epoch={child.epoch}")
        child.last_heard = now
        self._processes.introduce(child, peer)
        is_core = child.role == "engine-core"
        failures = self._recovery.core_failures if is_core else ()
        failed = child.role == "frontend" and self._recovery.failed_frontends.get(child.index) == child.epoch - 1
        self._link.send(peer, Welcome(self._config, failures, self._files, failed))
        if is_core and child.epoch != self._recovery.engine_epoch:
            self._link.send(peer, WorkersReplaced(self._recovery.engine_epoch))
        if self._shutdown.phase in DRAINED_IN.get(child.role, ()):
            self._link.send(peer, Drain())

    def _handle(self, child: Child, message: FromChild, now: float) -> list[FailureReport]:
        match message:
            case ReportAsked():
                self._recorder.collect(f"asked for by SIGUSR1 to {child.name}", now, asked=True)
            case Heartbeat():
                pass
            case Progress():
                child.progress = message
            case Ready(facts=facts):
                child.fire(ChildEvent.READY)
                self._recorder.note(f"ready {child.name} epoch={child.epoch}")
                child.facts = facts
            case Drained():
                child.fire(ChildEvent.DRAINED)
            case Failed(reason=reason, refused=refused):
                child.failure = reason
                return [FailureReport(child, refused and child.role != "standby")]
            case State(json=state):
                self._recorder.receive_core_state(state)
            case PoisonEnded():
                self._recovery.poison_ended()
            case IsolatesCandidates(turn=turn):
                child.turn = turn
                self._link.send(child.peer, IsolationRecorded(turn))
            case HasWorkers(is_ready=is_ready):
                child.has_workers = is_ready
            case WorkersLost():
                return [FailureReport(child, lost_workers=message)]
            case Hello():
                child.fire(ChildEvent.HELLO)  # a second one is illegal
            case _:
                assert_never(message)
        return []

    def _report_progress(self, text: str, on_progress: OnProgress) -> None:
        reported = [child.progress for child in self._processes.living.values() if child.progress]
        on_progress(text, sum(progress.done for progress in reported), sum(progress.total for progress in reported))
