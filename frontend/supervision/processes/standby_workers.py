"""Keeps one standby worker per rank, started when the service is at rest, so that a replacement need not import."""

import logging

from .child import Child, ChildState
from .process_table import ProcessTable
from .restart_budget import RestartBudget

log = logging.getLogger(__name__)

SETTLED_S = 2.0  # after a start or a recovery, the requests that waited have the cores first


class StandbyWorkers:
    """Decides when a standby worker is started. Its loss interrupts nothing; after too many losses it starts no more.

    Times are `time.monotonic` seconds.
    """

    def __init__(self, processes: ProcessTable, num_ranks: int, now: float):
        """`num_ranks`: the number of standby workers, one per rank; 0 for none."""
        self._processes = processes
        self._num_ranks = num_ranks
        self._budget = RestartBudget(limit=5, window_s=60.0)
        self._unsettled_at = now

    def tick(self, now: float) -> None:
        """Start a missing standby worker, unless another is still starting: a start takes a core for a second."""
        children = self._processes.of_role("worker", "engine-core")
        if not self._processes.is_complete or any(child.state is not ChildState.READY for child in children):
            self._unsettled_at = now
        standbys = self._processes.of_role("standby")
        if now - self._unsettled_at < SETTLED_S or any(standby.state is not ChildState.READY for standby in standbys):
            return
        missing = set(range(self._num_ranks)) - {standby.index for standby in standbys}
        if missing:
            self._start(min(missing), now)

    def lost(self, standby: Child, now: float) -> None:
        self._processes.dismiss(standby)
        self._give_up_if(self._budget.spend(standby.exit_reason(), now))
        if self._num_ranks:
            log.warning("lost an idle standby worker reason=%s", standby.exit_reason())

    def _start(self, index: int, now: float) -> None:
        try:
            self._processes.spawn(("standby", index), 0, now)
        except OSError as error:
            self._give_up_if(str(error))

    def _give_up_if(self, reason: str) -> None:
        if reason:
            self._num_ranks = 0
            log.warning("no standby workers from here on reason=%s", reason)
