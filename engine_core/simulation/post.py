"""Carries messages between the simulated clients and the core's client link, and records all that was sent."""

import hashlib
from collections.abc import Sequence

import msgspec

from paged_serve.protocol.messages.engine_core import (
    EngineCoreOutputs,
    EngineHeartbeat,
    FromEngineCore,
    RejectReason,
    RequestRejected,
    Welcome,
)

from .client import SimulatedClient
from .links import SimulatedSockets


class SimulatedLinks(SimulatedSockets):
    """No client gets more messages than it has given credit for."""

    def __init__(self, clients: Sequence[SimulatedClient], credit: int):
        super().__init__(self._deliver_to_inbox)
        self._clients = {client.name: client for client in clients}
        self._credit = credit
        self._trace = hashlib.sha256()
        self.full: set[bytes] = set()  # clients that take nothing any more
        self.num_expired = 0

    @property
    def trace_hash(self) -> str:
        """Depends on every message that was ever sent."""
        return self._trace.hexdigest()

    def record(self, message: object) -> None:
        """What goes elsewhere."""
        self._trace.update(msgspec.msgpack.encode(message))

    def _deliver_to_inbox(self, name: bytes, message: FromEngineCore) -> bool:
        if name in self.full:
            return False
        self.record((name, message))
        if isinstance(message, Welcome | EngineHeartbeat):
            return True
        assert isinstance(message, EngineCoreOutputs | RequestRejected), f"{message} was not asked for"
        self.num_expired += isinstance(message, RequestRejected) and message.reason is RejectReason.EXPIRED
        inbox = self._clients[name].inbox
        inbox.append(message)
        num_paid = sum(isinstance(entry, EngineCoreOutputs) for entry in inbox)
        assert num_paid <= self._credit, "more messages are under way than the credit allows"
        return True
