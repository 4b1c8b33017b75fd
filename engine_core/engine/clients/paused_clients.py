"""Pauses the clients with too many unacknowledged bytes: their sequences are not scheduled until they acknowledge."""

import logging
from collections.abc import KeysView, Mapping

from ...scheduling.waiting_queue import WaitingQueue
from .client_outbox import ClientOutbox
from .unacknowledged import UnacknowledgedBudget

log = logging.getLogger(__name__)


class PausedClients:
    """Applies the budget to the waiting queue, which knows the paused clients."""

    def __init__(self, budget: UnacknowledgedBudget, outboxes: Mapping[bytes, ClientOutbox], waiting: WaitingQueue):
        self._budget = budget
        self._outboxes = outboxes
        self._waiting = waiting

    @property
    def names(self) -> KeysView[bytes]:
        return self._waiting.paused.keys()

    def pause_where_due(self) -> None:
        num_clients = len(self._outboxes)
        if not self._budget.is_exceeded(num_clients):
            return
        for client, outbox in self._outboxes.items():
            if client not in self.names and self._budget.exceeds_share(outbox, num_clients):
                log.warning(
                    "client paused: it has not acknowledged bytes=%d of max_unacknowledged_bytes=%d",
                    outbox.unacknowledged_bytes,
                    self._budget.max_bytes,
                )
                self._waiting.pause(client)

    def resume_where_due(self) -> None:
        for client in [*self.names]:
            if self._budget.may_resume(self._outboxes[client], len(self._outboxes)):
                self._waiting.resume(client)
