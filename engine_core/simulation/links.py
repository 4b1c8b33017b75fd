"""Queues in the place of the core's sockets: what ClientDesk and WorkerLink speak through when nothing is real."""

from collections import deque
from collections.abc import Callable, Iterator

from paged_serve.protocol import worker
from paged_serve.protocol.engine_core import FromEngineCore, RequestRejected, ToEngineCore


class SimulatedPorts:
    """The clients' side. `deliver` takes what the core says; False: that client is gone, or its queue is full."""

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
