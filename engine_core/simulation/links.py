"""Queues in the place of the core's sockets: what ClientLink and WorkerLink speak through when nothing is real."""

from collections import deque
from collections.abc import Callable, Iterator

from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import ParallelConfig
from paged_serve.protocol.messages.engine_core import FromEngineCore, RequestRejected, ToEngineCore
from paged_serve.protocol.messages.handshake import handshake_hello

from ..process.worker_link import WorkerLink


class TickingClock:
    """Each look at it takes half a millisecond, so a turn ends after a few messages."""

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
    """A core's WorkerLink, and the one worker at its other end, which comes up as soon as it is there."""

    def __init__(self, num_blocks: int, vocab_size: int):
        self.channel = SimulatedChannel()
        self.reports: list[control.FromChild] = []
        self.link = WorkerLink(self.channel, ParallelConfig(), self._report, lambda line: None, TickingClock())
        self.ready = worker.WorkerReady(0, num_blocks, 1, 1 << 20, vocab_size, (), "float32", "cpu", 0, 0.0)

    def bring_up(self, epoch: int, now: float) -> bytes:
        """Returns the worker's name."""
        peer = b"worker:%d" % epoch
        self.send_to_core(peer, handshake_hello("worker", 0, epoch), now)
        self.send_to_core(peer, self.ready, now)
        self.send_to_core(peer, worker.KVCacheReady(0), now)
        assert self.link.is_ready, f"the group of epoch {epoch} did not come up: {self.reports}"
        self.channel.to_workers.clear()
        return peer

    def send_to_core(self, peer: bytes, message: worker.ToCoreFromWorker, now: float) -> list[worker.ModelRunnerOutput]:
        """Returns the answers to steps that count."""
        self.channel.to_core.append((peer, message))
        return self.link.receive(now)

    def _report(self, message: control.FromChild) -> bool:
        self.reports.append(message)
        return True
