"""The engine core's process: the only loop of this room. Links in, the engine, links out.

The loop sleeps in poll until a link has news or a heartbeat is due. Each turn it takes what came, plans what can be
planned, and keeps everybody's clock: the supervisor's, the clients' and the workers'.
"""

import gc
import logging
import math
import time
from collections.abc import Iterable
from typing import assert_never

import zmq

from paged_serve.protocol import control, engine_core, worker
from paged_serve.protocol.channel import FRAMES_PER_TURN, RouterChannel
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.handshake import check_hello
from paged_serve.protocol.lifecycle import FAREWELL_S, ChildProcess
from paged_serve.protocol.message import MAX_STEP_FRAME_BYTES, Hello, Refused
from paged_serve.protocol.run_dir import WORKERS_SOCKET, endpoint

from .admission import ModelFacts, fitting_model_len
from .client_ports import ClientPorts, is_remote
from .debug import describe, dump_state
from .engine import EngineCore
from .utilities import answer_call
from .worker_link import WorkerLink

log = logging.getLogger(__name__)

BEAT_S = 0.25
TIMER_S = 0.1  # a sleep may take so much longer; beyond that the machine had no time for us
WORKER_QUEUE_FRAMES = 64


class EngineProcess:
    """Owns the sockets and the engine. The engine begins when the first worker group is ready."""

    def __init__(self, child: ChildProcess):
        self._child = child
        self._clients = ClientPorts(child)
        workers = RouterChannel[worker.ToWorker, worker.ToCoreFromWorker](
            child.context,
            endpoint(child.run_dir, WORKERS_SOCKET),
            worker.ToCoreFromWorker,
            max_frame_bytes=MAX_STEP_FRAME_BYTES,
            queue_frames=WORKER_QUEUE_FRAMES,
        )
        self._workers_socket = workers.socket
        self._link = WorkerLink(workers, child.config.parallel, child.control.send, child.flight.note)
        self._poller = zmq.Poller()
        for socket in (child.control.socket, self._workers_socket, *self._clients.sockets):
            self._poller.register(socket, zmq.POLLIN)
        self._engine: EngineCore | None = None
        self._early_clients: dict[bytes, None] = {}  # said Hello before the engine was there
        self._told: set[bytes] = set()  # clients that received anything since the last beat
        self._next_beat = 0.0
        self._draining = False
        self._drained_told = False
        self._culprits_told = 0
        self._computes = False  # as clients were told last: there are workers

    def run(self) -> None:
        """Until the supervisor says stop. Whatever ends the loop otherwise is told to the clients first."""
        try:
            while not self._child.stop_requested:
                self._turn()
            self._farewell("the server stops")
        except Exception as error:
            if self._engine is not None:
                log.error("state at the end: %s", dump_state(self._engine))
            self._farewell(f"the engine core failed: {type(error).__name__}")
            raise

    def _turn(self) -> None:
        began = time.monotonic()
        wake_at = min(self._next_beat, self._link.group.deadline)
        if self._engine is not None:
            wake_at = min(wake_at, self._engine.next_deadline_s)
        wait_s = max(0.0, wake_at - began)
        events = dict(self._poller.poll(math.ceil(1000 * wait_s)))
        now = time.monotonic()
        self._link.group.excuse(max(0.0, now - began - wait_s - TIMER_S))
        if self._child.control.socket in events:
            self._receive_control()
        if self._workers_socket in events:
            self._receive_from_workers(now)
        if not events.keys().isdisjoint(self._clients.sockets):
            self._receive_from_clients(now)
        self._expire_requests(now)
        self._drive_workers(now)
        self._child.heartbeat(now, 0 if self._engine is None else self._engine.scheduler.step)
        if now >= self._next_beat:
            self._beat(now)

    # The supervisor

    def _receive_control(self) -> None:
        while (message := self._child.control.receive()) is not None:
            match message:
                case control.Stop():
                    self._child.request_stop()
                case control.Drain():
                    self._draining = True
                    if self._engine is not None:
                        self._engine.draining = True
                    log.info("draining")
                case control.WorkersReplaced(epoch=epoch, from_outside=from_outside):
                    self._link.replace(epoch, from_outside)
                case control.TellState():
                    self._child.control.send(control.State(describe(self._engine)))
                case control.Welcome() | control.Promote() | Refused():
                    pass
                case _:
                    assert_never(message)

    def _beat(self, now: float) -> None:
        """Every 250 ms: tell quiet clients that the loop goes round, and forget those that are gone."""
        self._next_beat = now + BEAT_S
        engine = self._engine
        if engine is None:
            return
        for client in engine.expired_clients(now):
            self._forget_client(client, "silent")
        self._tell_beat(engine, engine.clients.keys() - self._told)
        self._told.clear()
        if self._draining and engine.is_drained and not self._drained_told:
            self._drained_told = self._child.control.send(control.Drained())

    def _tell_beat(self, engine: EngineCore, clients: Iterable[bytes]) -> None:
        stats, computes = engine.stats(), self._link.is_ready
        for client in list(clients):
            self._send(client, engine_core.EngineHeartbeat(engine.scheduler.step, stats, computes))

    # Workers

    def _begin(self, now: float) -> EngineCore:
        """The first worker group is ready: make the engine, and let in those who wait."""
        facts = self._link.group.facts
        assert self._link.num_blocks is not None
        engine = self._engine = EngineCore(
            self._child.config,
            ModelFacts(
                self._link.num_blocks,
                fitting_model_len(self._child.config, self._link.num_blocks, facts.max_model_len),
                facts.vocab_size,
                frozenset(facts.eos_token_ids),
            ),
            self._child.epoch,
        )
        engine.draining = self._draining
        for_people = self._link.facts_for_people(engine) | self._clients.facts_for_people()
        self._child.control.send(control.Ready(for_people))
        log.info("ready %s", " ".join(f"{name}={value}" for name, value in for_people.items()))
        for client in self._early_clients:
            self._welcome(engine, client, now)
        self._early_clients.clear()
        gc.collect()
        gc.freeze()  # what lives now lives for ever; later collections need not look at it
        return engine

    def _drive_workers(self, now: float) -> None:
        """Send the steps that can be sent; after a change of workers, from a clean start."""
        self._link.check_deadline(now)
        if self._engine is not None and self._computes is not self._link.is_ready:
            self._computes = self._link.is_ready
            self._tell_beat(self._engine, self._engine.clients)
        if not self._link.is_ready:
            return
        engine = self._begin(now) if self._engine is None else self._engine
        epoch = self._link.group.epoch
        assert epoch is not None
        if epoch != engine.worker_epoch:
            log.info("requeued sequences=%d for workers epoch=%d", len(engine.scheduler.running), epoch)
            for client, news in engine.workers_replaced(epoch, now, from_outside=self._link.take_from_outside()):
                self._send(client, news)
            if engine.num_culprits > self._culprits_told:
                self._culprits_told = engine.num_culprits
                self._child.control.send(control.CulpritEnded())
        while self._link.is_ready and (plan := engine.plan(now)) is not None:
            self._link.send_step(plan, engine.scheduler, now)

    def _receive_from_workers(self, now: float) -> None:
        for answer in self._link.receive(now):
            if self._engine is None or not self._link.is_ready:
                return
            try:
                outgoing = self._engine.apply(answer, now)
            except ProtocolError as error:
                self._link.lose(str(error))
                return
            for client, news in outgoing:
                self._send(client, news)

    # Clients

    def _expire_requests(self, now: float) -> None:
        if self._engine is not None and now >= self._engine.next_deadline_s:
            for client, news in self._engine.expire(now):
                self._send(client, news)

    def _receive_from_clients(self, now: float) -> None:
        for peer, message in self._clients.receive(FRAMES_PER_TURN):
            if isinstance(message, Hello):
                self._greet_client(peer, message, now)
            elif self._engine is not None and peer in self._engine.clients:
                try:
                    self._on_client_message(self._engine, peer, message, now)
                except Exception:  # what one message does to us must not end everybody's loop
                    log.exception("a client's message failed type=%s", type(message).__name__)
                    if isinstance(message, engine_core.EngineCoreRequest):
                        self._send(peer, _rejected(message.request_id))

    def _greet_client(self, peer: bytes, hello: Hello, now: float) -> None:
        reason = check_hello(hello)
        if reason:
            log.warning("refused a client role=%s reason=%s", hello.role, reason)
            self._clients.send(peer, Refused(reason))
        elif self._engine is None:
            self._early_clients[peer] = None
        else:
            self._welcome(self._engine, peer, now)

    def _welcome(self, engine: EngineCore, client: bytes, now: float) -> None:
        """Also to one that asks again: it wants to know whether we are still the same, and still know it."""
        facts = engine.facts
        known = client in engine.clients
        engine.add_client(client, now)
        engine.heard_from(client, now)
        limits = engine_core.Welcome(
            epoch=engine.epoch,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            block_size=engine.kv_cache.block_size,
            num_blocks=facts.num_blocks,
            max_num_seqs=engine.scheduler.max_num_rows,
            known=known,
        )
        self._send(client, limits)

    def _on_client_message(
        self,
        engine: EngineCore,
        client: bytes,
        message: engine_core.EngineCoreRequest
        | engine_core.AbortRequests
        | engine_core.OutputsReceived
        | engine_core.UtilityCall
        | engine_core.ClientHeartbeat,
        now: float,
    ) -> None:
        engine.heard_from(client, now)
        outgoing: list[tuple[bytes, engine_core.FromEngineCore]] = []
        match message:
            case engine_core.EngineCoreRequest():
                outgoing += engine.add_request(client, message, now)
            case engine_core.AbortRequests():
                outgoing += engine.abort(client, message, now)
            case engine_core.OutputsReceived(frames=frames):
                outgoing += engine.outputs_received(client, frames)
            case engine_core.UtilityCall():
                outgoing.append((client, answer_call(engine, message, is_remote(client))))
            case engine_core.ClientHeartbeat():
                pass
            case _:
                assert_never(message)
        for receiver, answer in outgoing:
            self._send(receiver, answer)

    def _send(self, client: bytes, message: engine_core.FromEngineCore) -> None:
        if self._clients.send(client, message):
            self._told.add(client)
        else:
            self._forget_client(client, "gone, or its queue is full")

    def _forget_client(self, client: bytes, reason: str) -> None:
        engine = self._engine
        if engine is not None and client in engine.clients:
            log.info("client forgotten reason=%r aborted=%d", reason, len(engine.clients[client].streams))
            engine.remove_client(client)

    def _farewell(self, reason: str) -> None:
        """Say it to all, and give the words half a second to leave."""
        for client in self._engine.clients if self._engine is not None else self._early_clients:
            self._clients.send(client, engine_core.EngineFailed(reason))
        self._link.shut_down()
        for socket in (*self._clients.sockets, self._workers_socket):
            socket.close(linger=int(1000 * FAREWELL_S))


def _rejected(request_id: int) -> engine_core.RequestRejected:
    return engine_core.RequestRejected(
        request_id, engine_core.RejectReason.FAILED, "the engine failed to take this request; its log says why"
    )
