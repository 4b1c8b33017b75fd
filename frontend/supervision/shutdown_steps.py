"""Drains, stops and kills the children."""

import logging
import signal
from typing import TYPE_CHECKING, assert_never

from paged_serve.protocol.messages.control import Drain, Stop

from .processes.child import Child, ChildState, Role
from .processes.process_table import ProcessTable
from .shutdown import StopStep

if TYPE_CHECKING:
    from .control_link import ControlLink

log = logging.getLogger(__name__)


class ShutdownSteps:
    """Carries out the steps that Shutdown reports as due."""

    def __init__(self, processes: ProcessTable, link: "ControlLink"):
        self._processes = processes
        self._link = link

    def send_drain(self, role: Role) -> None:
        for child in self._processes.of_role(role):
            self._link.send(child.peer, Drain())

    @property
    def frontends_drained(self) -> bool:
        """Whether none has a request; one that has just been started accepts none."""
        frontends = self._processes.of_role("frontend")
        return all(child.state in (ChildState.DRAINED, ChildState.SPAWNED) for child in frontends)

    @property
    def core_drained(self) -> bool:
        """False while a core that has died is replaced: clients send the next one their requests again."""
        cores = self._processes.of_role("engine-core")
        return bool(cores) and all(core.state is ChildState.DRAINED for core in cores)

    @property
    def frontends_gone(self) -> bool:
        return all(child.role != "frontend" for child in self._processes.unfinished())

    def take(self, step: StopStep) -> None:
        for child in self._processes.unfinished():
            self._take(step, child)

    def _take(self, step: StopStep, child: Child) -> None:
        match step:
            case _ if child.role == "standby":  # it has nothing to finish, and may not listen while it imports
                child.signal(signal.SIGKILL)
            case StopStep.ASK_FRONTENDS if child.role != "frontend":
                pass
            case StopStep.ASK_FRONTENDS | StopStep.ASK_ALL if child.peer:
                self._link.send(child.peer, Stop())
            case StopStep.ASK_FRONTENDS | StopStep.ASK_ALL | StopStep.TERMINATE:
                child.signal(signal.SIGTERM)
            case StopStep.KILL:
                child.signal(signal.SIGKILL)
            case StopStep.ABANDON:
                log.error("abandoned process=%s: SIGKILL does not end it", child.exit_reason())
                self._processes.abandon(child)
            case _:
                assert_never(step)
