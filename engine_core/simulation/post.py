"""Carries the engine's messages to the clients, and notes all that was ever sent."""

import hashlib
from collections.abc import Sequence

import msgspec

from paged_serve.protocol.engine_core import EngineCoreOutputs

from ..engine import Outgoing
from .client import SimulatedClient


class Post:
    """No client gets more messages than it has given credit for."""

    def __init__(self, clients: Sequence[SimulatedClient], credit: int):
        self._clients = {client.name: client for client in clients}
        self._credit = credit
        self._trace = hashlib.sha256()

    @property
    def trace_hash(self) -> str:
        """Depends on every message that was ever sent."""
        return self._trace.hexdigest()

    def send(self, outgoing: Outgoing) -> None:
        self.record(outgoing)
        for name, message in outgoing:
            inbox = self._clients[name].inbox
            inbox.append(message)
            num_paid = sum(isinstance(message, EngineCoreOutputs) for message in inbox)
            assert num_paid <= self._credit, "more messages are under way than the credit allows"

    def record(self, messages: object) -> None:
        """What goes elsewhere."""
        self._trace.update(msgspec.msgpack.encode(messages))
