"""The engine core's process, and the only loop of this package: receive, run the engine, send.

The loop sleeps in poll until a link has messages or a heartbeat is due. Each iteration handles the received messages,
schedules the steps that can be sent, and serves all timers: the supervisor's, the clients' and the workers'.
"""

import gc
import logging
import math
import os
import time
from typing import assert_never

import zmq
from msgspec import structs

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.config import KVEventsConfig
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded
from paged_serve.protocol.messages.loading.kv_tiers import BlocksMoved, TierContents
from paged_serve.protocol.messages.message import MAX_STEP_FRAME_BYTES, Refused
from paged_serve.protocol.process.file_stamps import model_digest
from paged_serve.protocol.process.lifecycle import LINGER_S, ChildProcess
from paged_serve.protocol.process.supervisor_watch import SupervisorWatch
from paged_serve.protocol.transport.channel import RouterChannel
from paged_serve.protocol.transport.run_dir import WORKERS_SOCKET, endpoint

from ..admission.pooling import PoolingFacts
from ..admission.validation import ModelFacts, fitting_model_len
from ..engine.debug import describe, dump_state
from ..engine.engine import CLIENT_LEASE_S, EngineCore
from .client_link import ClientLink
from .client_sockets import ClientSockets
from .event_sockets import open_event_sockets
from .loop_clock import LoopClock
from .tier_link import take_tier_messages, tier_answered
from .worker_link import WorkerLink

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
WORKER_QUEUE_FRAMES = 64


class EngineProcess:
    """Owns the sockets and the engine. The engine begins when the first worker group is ready."""

    def __init__(self, child: ChildProcess):
        self._child = child
        self._client_sockets = ClientSockets(child)
        run, model = os.path.basename(child.run_dir), model_digest(child.config, child.files)
        self._clients = ClientLink(self._client_sockets, child.core_failures, run=run, model=model)
        self._clock = LoopClock(time.monotonic())
        workers = RouterChannel[worker.ToWorker, worker.ToCoreFromWorker](
            child.context,
            endpoint(child.run_dir, WORKERS_SOCKET),
            worker.ToCoreFromWorker,
            max_frame_bytes=MAX_STEP_FRAME_BYTES,
            queue_frames=WORKER_QUEUE_FRAMES,
        )
        self._workers_socket = workers.socket
        self._events = open_event_sockets(child)
        self._workers = WorkerLink(workers, child.config.parallel, child.control.send, child.flight.note)
        self._poller = zmq.Poller()
        for socket in (child.control.socket, self._workers_socket, *self._client_sockets.sockets):
            self._poller.register(socket, zmq.POLLIN)
        self._engine: EngineCore | None = None
        self._next_heartbeat = 0.0
        self._supervisor_watch = SupervisorWatch(os.getppid(), child.config.server.wake_supervisor)
        self._draining = False
        self._clients_are_back_s = math.inf  # with the requests of a former core
        self._reported_drained = False
        self._reported_num_poison = 0
        self._reported_turn = 0  # the isolation turn last reported to the supervisor
        self._computes = False  # workers are ready, as last reported to clients
        self._reported_workers = False  # the same, to the supervisor

    def run(self) -> None:
        """Run until the supervisor sends Stop. Clients are told of the end, also if an exception is then raised."""
        try:
            while not self._child.stop_requested:
                self._iterate()
            self._announce_end("the server stops")
        except Exception as error:
            if self._engine is not None:
                log.error("state at the end: %s", dump_state(self._engine))
            self._announce_end(f"the engine core failed: {type(error).__name__}")
            raise

    def _iterate(self) -> None:
        wake_at = min(self._next_heartbeat, self._workers.group.deadline)
        if self._engine is not None:
            wake_at = min(wake_at, self._engine.next_deadline_s)
        if self._events is not None:
            wake_at = min(wake_at, self._events.wake_at)
        sleep_s = 0.0 if self._clients.has_work else max(0.0, wake_at - time.monotonic())
        events = dict(self._poller.poll(math.ceil(1000 * sleep_s)))
        now = time.monotonic()
        lost_s = self._clock.begin_iteration(now, sleep_s)
        self._workers.group.shift_deadline(lost_s)
        self._clients.extend_leases(lost_s)
        if self._child.control.socket in events:
            self._receive_control()
        if self._workers_socket in events:
            self._receive_from_workers(now)
        if not events.keys().isdisjoint(self._client_sockets.sockets):
            self._clients.receive(now)
        self._clients.expire(now)
        self._advance_isolation(now)
        self._drive_workers(now)
        if self._events is not None:
            self._events.publish(now)
        self._child.heartbeat(now, 0 if self._engine is None else self._engine.scheduler.step)
        if now >= self._next_heartbeat:
            self._heartbeat(now)

    # The supervisor

    def _receive_control(self) -> None:
        while (message := self._child.control.receive()) is not None:
            match message:
                case control.Stop():
                    self._child.request_stop()
                case control.Drain():
                    self._draining = True
                    log.info("draining")
                case control.WorkersReplaced(epoch=epoch, from_outside=from_outside):
                    self._workers.replace(epoch, from_outside)
                case control.IsolationRecorded(turn=turn):
                    if self._engine is not None:
                        self._engine.admission.core_poison.record(turn)
                case control.DescribeState():
                    self._child.control.send(control.State(describe(self._engine)))
                case control.Welcome() | control.Promote() | Refused():
                    pass
                case _:
                    assert_never(message)

    def _heartbeat(self, now: float) -> None:
        """Called every 250 ms."""
        self._next_heartbeat = now + HEARTBEAT_S
        self._supervisor_watch.check(now)
        if self._engine is not None:
            self._clients.heartbeat(self._engine, now, computes=self._workers.is_ready)
            if self._draining:
                self._drain(self._engine, now)

    def _drain(self, engine: EngineCore, now: float) -> None:
        """Refuse new requests, and report the end of the accepted ones. Those of a former core must be here by then."""
        if not engine.admission.core_poison.is_over:
            return
        engine.admission.draining = True
        if now >= self._clients_are_back_s and engine.is_drained and not self._reported_drained:
            self._reported_drained = self._child.control.send(control.Drained())

    def _advance_isolation(self, now: float) -> None:
        """Report the next turn, which begins when the supervisor has recorded it."""
        turn = 0 if self._engine is None else self._engine.admission.core_poison.turn_number
        if turn != self._reported_turn and self._child.control.send(control.IsolatesCandidates(turn)):
            if not (turn and self._reported_turn):
                log.info("requests that may have killed a core are computed one by one%s", "" if turn else ": done")
            self._reported_turn = turn
        self._clients.advance_isolation(now)

    # Workers

    def _begin(self, now: float) -> EngineCore:
        """The first worker group is ready: make the engine and welcome the clients that wait."""
        config = self._child.config
        if self._events is None:  # nothing would take them
            config = structs.replace(config, kv_events=KVEventsConfig())
        engine = self._engine = EngineCore(config, self._model_facts(), self._child.epoch)
        # A former core would have waited as long for a client that was halted.
        self._clients_are_back_s = now + (CLIENT_LEASE_S if self._child.epoch else 0.0)
        readable = self._workers.readable_facts(engine) | self._client_sockets.readable_facts()
        self._child.control.send(control.Ready(readable))
        log.info("ready %s", " ".join(f"{name}={value}" for name, value in readable.items()))
        if self._events is not None and engine.kv_cache.events is not None:
            self._events.begin(engine.kv_cache.events)
            for socket in self._events.sockets:  # before, an unread request would wake the loop forever
                self._poller.register(socket, zmq.POLLIN)
        self._clients.open(engine, now)
        gc.collect()
        gc.freeze()  # objects that live now live until exit; later collections skip them
        return engine

    def _model_facts(self) -> ModelFacts:
        facts, num_blocks = self._workers.group.facts, self._workers.num_blocks
        assert num_blocks is not None
        sizes = num_blocks, facts.block_size, facts.max_model_len
        return ModelFacts(
            num_blocks=num_blocks,
            block_size=facts.block_size,
            max_model_len=fitting_model_len(self._child.config, *sizes, facts.kv_groups),
            vocab_size=facts.vocab_size,
            eos_token_ids=frozenset(facts.eos_token_ids),
            arithmetic=facts.arithmetic,
            kv_groups=facts.kv_groups,
            pooling=PoolingFacts.of(facts),
            kv_bytes_per_block=max(ready.kv_bytes_per_block for ready in self._workers.group.loaded.values()),
            device=facts.device,
            grammar_end_token_ids=frozenset(facts.grammar_end_token_ids),
        )

    def _drive_workers(self, now: float) -> None:
        """Send the steps that can be sent; requeue running sequences first if the workers were replaced."""
        self._workers.check_deadline(now)
        if self._engine is not None and self._computes is not self._workers.is_ready:
            self._computes = self._workers.is_ready
            self._clients.send_heartbeat(self._engine, self._engine.clients, now, computes=self._computes)
        self._report_workers()
        if not self._workers.is_ready:
            return
        engine = self._begin(now) if self._engine is None else self._engine
        epoch = self._workers.group.epoch
        assert epoch is not None
        if epoch != engine.worker_epoch:
            log.info("requeued sequences=%d for workers epoch=%d", len(engine.scheduler.running), epoch)
            from_outside = self._workers.take_from_outside()
            self._clients.send(engine.workers_replaced(epoch, now, from_outside=from_outside), now)
            if engine.num_poison_requests > self._reported_num_poison:
                self._reported_num_poison = engine.num_poison_requests
                self._child.control.send(control.PoisonEnded())
        while self._workers.is_ready:
            for load in engine.take_loads():
                self._workers.send_load(load, now)
            if not self._workers.is_ready or (plan := engine.plan(now)) is None:
                break
            self._workers.send_step(plan, engine.scheduler, now)
        self._workers.send_transfers(take_tier_messages(engine, now))

    def _report_workers(self) -> None:
        is_ready = self._workers.is_ready
        if self._engine is None or is_ready is self._reported_workers:
            return
        if self._child.control.send(control.HasWorkers(is_ready)):
            self._reported_workers = is_ready

    def _receive_from_workers(self, now: float) -> None:
        for answer in self._workers.receive(now):
            if self._engine is None or not self._workers.is_ready:
                return
            if isinstance(answer, TierContents | BlocksMoved):
                tier_answered(self._engine, answer, now)
                continue
            try:
                if isinstance(answer, AdapterLoaded):
                    outgoing = self._engine.adapter_loaded(answer, self._workers.group.size, now)
                else:
                    outgoing = self._engine.apply(answer, now)
            except ProtocolError as error:
                self._workers.lose(str(error))
                return
            self._clients.send(outgoing, now)

    def _announce_end(self, reason: str) -> None:
        """Report `reason` to all clients; sockets linger for LINGER_S."""
        self._clients.announce_end(reason)
        self._workers.shut_down()
        self._client_sockets.close(LINGER_S)
        self._workers_socket.close(linger=int(1000 * LINGER_S))
        if self._events is not None:
            self._events.close()
