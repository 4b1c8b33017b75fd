"""The worker process: handshake, loading, then a loop of plan, execution and answer. Imports torch only for loading."""

import gc
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn, assert_never

import zmq

from paged_serve.protocol.errors import ConfigError, ProtocolError
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.messages.loading.adapters import LoadAdapter
from paged_serve.protocol.messages.loading.kv_tiers import DropBlocks, LoadBlocks, OpenTier, StoreBlocks, ToWorkerTier
from paged_serve.protocol.messages.loading.startup import CreateKVCache, KVCacheReady, LoadProgress, LoadStage
from paged_serve.protocol.messages.message import MAX_LONG_TEXT, MAX_STEP_FRAME_BYTES, Hello, Refused
from paged_serve.protocol.messages.worker import (
    SchedulerOutput,
    Shutdown,
    ToCoreFromWorker,
    ToWorker,
    Welcome,
    WorkerFailed,
)
from paged_serve.protocol.process.file_stamps import unchanged
from paged_serve.protocol.process.lifecycle import HEARTBEAT_S, LINGER_S, ChildProcess, run_child
from paged_serve.protocol.transport.channel import DealerChannel
from paged_serve.protocol.transport.run_dir import WORKERS_SOCKET, endpoint

if TYPE_CHECKING:
    from .rank import Rank

log = logging.getLogger(__name__)

PROGRESS_S = 0.1  # between two LoadProgress messages


class WorkerProcess:
    """One rank's process. `run` returns when the process is asked to stop, and raises if it cannot continue."""

    def __init__(self, child: ChildProcess):
        self._child = child
        self._link = DealerChannel[ToCoreFromWorker, ToWorker](
            child.context,
            endpoint(child.run_dir, WORKERS_SOCKET),
            child.secret,
            identity("worker", child.index, child.epoch),
            ToWorker,
            max_frame_bytes=MAX_STEP_FRAME_BYTES,
        )
        self._poller = zmq.Poller()
        self._poller.register(self._link.socket, zmq.POLLIN)
        self._poller.register(child.control.socket, zmq.POLLIN)
        self._rank: Rank | None = None
        self._step = 0
        self._next_progress = 0.0

    def run(self) -> None:
        """Run until Stop arrives. An error is reported to the core first, then raised."""
        try:
            self._send_hello()
            while not self._child.stop_requested:
                message = self._receive()
                if message is not None:
                    self._handle(message)
                self._answer()
        except Exception as error:
            self._handle_supervisor_messages()
            if self._child.stop_requested:  # on a normal stop, the core or another rank may end during a step
                log.info("stopped during a step reason=%s", error)
                return
            refused = self._child.is_refusal(error)
            reason = str(error) if refused else f"{type(error).__name__}: {error}"
            self._link.send(WorkerFailed(self._child.index, reason[:MAX_LONG_TEXT], refused))
            raise
        finally:
            self._link.close(linger_s=LINGER_S)

    def _send_hello(self) -> None:
        """Greet the core, which may start later than this process: on a starved machine by minutes."""
        limit_s = self._child.config.parallel.step_timeout_s
        deadline = time.monotonic() + limit_s
        while not self._link.wait_connected(HEARTBEAT_S):
            self._child.heartbeat(time.monotonic(), self._step)
            self._handle_supervisor_messages()
            if self._child.stop_requested:
                return
            if time.monotonic() > deadline:
                raise ProtocolError(f"no engine core in {self._child.run_dir} after {limit_s:g} s (--step-timeout)")
        if not self._link.send(handshake_hello("worker", self._child.index, self._child.epoch)):
            raise ProtocolError(f"the engine core in {self._child.run_dir} takes no message")

    def _receive(self) -> ToWorker | None:
        """The core's next message; None if none arrives within HEARTBEAT_S. Sends heartbeats and handles Stop."""
        self._child.heartbeat(time.monotonic(), self._step)
        message = self._link.receive()
        if message is None:
            self._poller.poll(int(1000 * HEARTBEAT_S))
            message = self._link.receive()
        if self._link.num_invalid:  # a lost scheduler output would stall the step until its deadline
            raise ProtocolError("the engine core sent a message that cannot be read; see the log line above")
        self._handle_supervisor_messages()
        return message

    def _handle_supervisor_messages(self, wait_s: float = 0.0) -> None:
        """Handle messages of the supervisor that have arrived or arrive within `wait_s`."""
        while not self._child.stop_requested and (order := self._child.control.receive(wait_s)) is not None:
            if isinstance(order, control.Stop):
                self._child.request_stop()

    def _handle(self, message: ToWorker) -> None:
        match message:
            case SchedulerOutput():
                self._execute(message)
            case LoadAdapter():
                self._loaded().adapters.start(message)
            case OpenTier() | StoreBlocks() | LoadBlocks() | DropBlocks():
                self._move(message)
            case Welcome():
                self._load()
            case CreateKVCache(num_blocks=num_blocks):
                self._create_kv_cache(num_blocks)
            case Shutdown():
                self._child.request_stop()
            case Refused(reason=reason, stale=stale):
                # Stale: the group's epoch is over and this process is being replaced; the settings are not at fault.
                raise (ProtocolError if stale else ConfigError)(f"the engine core refused this worker: {reason}")
            case _:
                assert_never(message)

    def _load(self) -> None:
        from .memory_shortage import shortage_named
        from .rank import Rank  # imports torch

        child = self._child
        rendezvous = f"{child.run_dir}/rendezvous-{child.epoch}"
        with unchanged(child.files), shortage_named(child.config):
            self._rank = Rank.load(child.config, child.index, rendezvous, partial(self._progress, "weights"))
            self._rank.load_kernels(partial(self._progress, "kernels"))
            ready = self._rank.ready()
        self._send(ready)

    def _progress(self, stage: LoadStage, done: int, total: int) -> None:
        now = time.monotonic()
        self._child.heartbeat(now, self._step)
        if now >= self._next_progress or done == total:
            self._next_progress = now + PROGRESS_S
            self._send(LoadProgress(self._child.index, done, total, stage))

    def _create_kv_cache(self, num_blocks: int) -> None:
        from .memory_shortage import shortage_named

        rank = self._loaded()
        with unchanged(self._child.files), shortage_named(self._child.config):
            rank.create_kv_cache(num_blocks, partial(self._progress, "graphs"))
        self._poller.register(rank.steps.fd, zmq.POLLIN)
        self._poller.register(rank.adapters.fd, zmq.POLLIN)
        if rank.tier is not None:
            self._poller.register(rank.tier.fd, zmq.POLLIN)
        gc.freeze()  # objects alive now stay alive; later collections can skip them
        gc.enable()
        self._send(KVCacheReady(self._child.index))
        self._child.control.send(control.Ready(rank.facts()))
        log.info("ready num_blocks=%d", num_blocks)

    def _execute(self, plan: SchedulerOutput) -> None:
        self._loaded().steps.launch(plan)
        self._step = plan.step

    def _answer(self) -> None:
        """Send the results of completed steps, and of loaded adapters, to the core."""
        while self._rank is not None and (output := self._rank.take_output()) is not None:
            if self._child.index == 0:
                self._send(output)
        while self._rank is not None and (loaded := self._rank.adapters.take()) is not None:
            self._send(loaded)
        if self._rank is not None and self._rank.tier is not None:
            for message in self._rank.tier.take():
                self._send(message)

    def _move(self, message: ToWorkerTier) -> None:
        rank = self._loaded()
        if rank.tier is None:
            raise ProtocolError("the core uses a KV tier that is not configured")
        rank.tier.handle(message, rank.steps.mark())

    def _loaded(self) -> "Rank":
        if self._rank is None:
            raise ProtocolError("the core sent work before this worker was ready")
        return self._rank

    def _send(self, message: ToCoreFromWorker) -> None:
        assert not isinstance(message, Hello)
        if self._link.send(message):
            return
        self._handle_supervisor_messages(LINGER_S)  # on a normal stop the core may end before our Stop arrives
        if not self._child.stop_requested:
            raise ProtocolError(f"the engine core does not accept {type(message).__name__}: it has ended or is blocked")


def main() -> NoReturn:
    run_child("worker", lambda child: WorkerProcess(child).run())
