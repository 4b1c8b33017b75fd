"""Decides which processes are restarted after a loss, and with which epoch."""

import logging
from itertools import takewhile
from typing import TYPE_CHECKING, assert_never

from paged_serve.protocol.messages.control import WorkersReplaced
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS, MAX_CORE_FAILURES, CoreFailure

from .processes.child import Child
from .processes.out_of_memory import OutOfMemory
from .processes.process_table import ProcessTable
from .processes.restart_budget import RestartBudget
from .processes.standby_workers import StandbyWorkers

if TYPE_CHECKING:
    from .control_link import ControlLink

log = logging.getLogger(__name__)

# Needed by engine_core/scheduling/worker_poison.py, engine_core/admission/core_poison.py and background responses.
RESTARTS_PER_POISON = 1 + DEADLY_ISOLATIONS


class Recovery:
    """Replaces whole units: a single frontend, the worker group, or the core together with its workers."""

    def __init__(self, processes: ProcessTable, link: "ControlLink", standbys: StandbyWorkers, budget: RestartBudget):
        self.engine_epoch = 0  # of the worker group; a core starts with it and is sent later ones
        self.core_failures: tuple[CoreFailure, ...] = ()  # the latest; passed to each new core
        self.failed_frontends: dict[int, int] = {}  # the latest epoch of each index that failed by itself
        self._processes = processes
        self._link = link
        self._standbys = standbys
        self._budget = budget
        self.out_of_memory = OutOfMemory()

    def child_lost(self, child: Child, now: float, *, draining: bool) -> str:
        """Replace a required child that has died, is about to, or hangs. Returns "", or why the server must give up."""
        match child.role:
            case "worker":
                return self.engine_lost(child.exit_reason(), now, core_too=False)
            case "engine-core":
                return self.engine_lost(child.exit_reason(), now, core_too=True)
            case "frontend":
                return self._frontend_lost(child, now, draining=draining)
            case "standby":
                self._standbys.lost(child, now)
                return ""
            case _:
                assert_never(child.role)

    def engine_lost(self, reason: str, now: float, *, core_too: bool) -> str:
        """Kill the worker group (and the core) and start the next. Returns "", or why the server must give up."""
        if exhausted := self._spend(reason, now):
            return exhausted
        self.engine_epoch += 1
        workers = self._processes.of_role("worker")
        # When a rank is killed the others report errors, and their reports may arrive first.
        short_of_memory = self.out_of_memory.ran_out()
        from_outside = any(worker.ended_from_outside() for worker in workers) and not short_of_memory
        cores = self._processes.of_role("engine-core")
        if core_too:
            for core in cores:
                if core.has_workers and (short_of_memory or not core.ended_from_outside()):
                    self._core_failed(core)
            self._processes.replace(cores, self.engine_epoch)
        for core in self._processes.of_role("engine-core"):
            self._link.send(core.peer, WorkersReplaced(self.engine_epoch, from_outside))
        self._processes.replace(workers, self.engine_epoch)
        self._processes.start_with("worker", self.engine_epoch)  # workers of a previous loss that were not started yet
        return ""

    def _core_failed(self, core: Child) -> None:
        """Record a core that failed by itself: a request may be the cause; clients of the next core find it."""
        failure = CoreFailure(core.epoch, core.turn)
        self.core_failures = (*self.core_failures, failure)[-MAX_CORE_FAILURES:]
        turns = [failure.turn for failure in self.core_failures]
        in_turns = list(takewhile(bool, reversed(turns)))
        # More cores in a row than one request takes have cleared none: the requests are probably not the cause.
        is_hopeless = turns[-RESTARTS_PER_POISON:] == [1] * RESTARTS_PER_POISON
        if in_turns and len(in_turns) % DEADLY_ISOLATIONS == 0 and not is_hopeless:
            self.poison_ended()

    def poison_ended(self) -> None:
        """Give restarts back: the last groups, cores or frontends were lost to a request that has ended."""
        self._budget.refund(RESTARTS_PER_POISON)

    def _frontend_lost(self, child: Child, now: float, *, draining: bool) -> str:
        if draining:  # its connections are gone, and no new ones are accepted
            log.warning("lost while draining reason=%s", child.exit_reason())
            self._processes.dismiss(child)
            return ""
        if exhausted := self._spend(child.exit_reason(), now):
            return exhausted
        if self.out_of_memory.ran_out() or not child.ended_from_outside():
            self.failed_frontends[child.index] = child.epoch
        self._processes.replace([child], child.epoch + 1)
        return ""

    def _spend(self, loss: str, now: float) -> str:
        log.warning("lost reason=%s", loss)
        return self._budget.spend(loss, now)
