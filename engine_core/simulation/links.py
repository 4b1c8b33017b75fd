"""Queues in place of the core's sockets: ClientLink and WorkerLink send and receive through them in a simulation."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.messages.engine_core import (
    EngineCoreOutputs,
    EngineHeartbeat,
    FromEngineCore,
    RejectReason,
    RequestRejected,
    ToEngineCore,
    Welcome,
)
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.loading import startup

from ..process.worker_link import Answer, WorkerLink


class TickingClock:
    """Advances half a millisecond per call, so an iteration of the loop ends after a few messages."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.0005
        return self.now


class SimulatedSockets:
    """The clients' side. `deliver` takes a message of the core; False: the client is gone, or its queue is full."""

    def __init__(self, deliver: Callable[[bytes, FromEngineCore], bool]):
        self._deliver = deliver
        self.to_core: deque[tuple[bytes, ToEngineCore]] = deque()
        self.rejections: deque[tuple[bytes, RequestRejected]] = deque()

    def receive(self) -> Iterator[tuple[bytes, ToEngineCore]]:
        while self.to_core:
            yield self.to_core.popleft()

    def take_rejections(self) -> Iterator[tuple[bytes, RequestRejected]]:
        while self.rejections:
            yield self.rejections.popleft()

    def send(self, client: bytes, message: FromEngineCore) -> bool:
        return self._deliver(client, message)


class SimulatedLinks(SimulatedSockets):
    """Delivers to the clients' inboxes, records all messages, and checks that no client gets more than its credit."""

    def __init__(self, inboxes: Mapping[bytes, deque[EngineCoreOutputs | RequestRejected]], credit: int):
        super().__init__(self._deliver_to_inbox)
        self._inboxes = inboxes
        self._credit = credit
        self._trace = hashlib.sha256()
        self.full: set[bytes] = set()  # clients to which every send fails
        self.num_expired = 0

    @property
    def trace_hash(self) -> str:
        """A hash over all messages that were sent, in order."""
        return self._trace.hexdigest()

    def record(self, message: object) -> None:
        """Add a message to the trace."""
        self._trace.update(msgspec.msgpack.encode(message))

    def _deliver_to_inbox(self, name: bytes, message: FromEngineCore) -> bool:
        if name in self.full:
            return False
        self.record((name, message))
        if isinstance(message, Welcome | EngineHeartbeat):
            return True
        assert isinstance(message, EngineCoreOutputs | RequestRejected), f"unexpected message {message}"
        self.num_expired += isinstance(message, RequestRejected) and message.reason is RejectReason.EXPIRED
        inbox = self._inboxes[name]
        inbox.append(message)
        num_counted = sum(isinstance(entry, EngineCoreOutputs) for entry in inbox)
        assert num_counted <= self._credit, "more messages are in flight than the credit allows"
        return True


class SimulatedChannel:
    """The workers' side."""

    def __init__(self) -> None:
        self.num_invalid = 0
        self.to_core: deque[tuple[bytes, worker.ToCoreFromWorker]] = deque()
        self.to_workers: deque[tuple[bytes, worker.ToWorker]] = deque()

    def receive(self) -> tuple[bytes, worker.ToCoreFromWorker] | None:
        return self.to_core.popleft() if self.to_core else None

    def send(self, peer: bytes, message: worker.ToWorker) -> bool:
        self.to_workers.append((peer, message))
        return True


class SimulatedWorkerLink:
    """A core's WorkerLink, and the one worker at its other end."""

    def __init__(self, num_blocks: int, vocab_size: int):
        self.channel = SimulatedChannel()
        self.reports: list[control.FromChild] = []
        self.link = WorkerLink(self.channel, ParallelConfig(), self._report, lambda line: None, TickingClock())
        self.ready = startup.WorkerReady(0, num_blocks, 1, 1, 1 << 20, vocab_size, (), "float32", "cpu", 0, 0.0)

    def bring_up(self, epoch: int, now: float) -> bytes:
        """Let the worker of `epoch` start and become ready; returns its name."""
        peer = b"worker:%d" % epoch
        self.send_to_core(peer, handshake_hello("worker", 0, epoch), now)
        self.send_to_core(peer, self.ready, now)
        self.send_to_core(peer, startup.KVCacheReady(0), now)
        assert self.link.is_ready, f"the group of epoch {epoch} did not become ready: {self.reports}"
        self.channel.to_workers.clear()
        return peer

    def send_to_core(self, peer: bytes, message: worker.ToCoreFromWorker, now: float) -> list[Answer]:
        """Returns the answers that the link accepts."""
        self.channel.to_core.append((peer, message))
        return self.link.receive(now)

    def _report(self, message: control.FromChild) -> bool:
        self.reports.append(message)
        return True
