"""Everything that clients say to the engine core's process, and everything that they are told."""

import logging
import time
from collections.abc import Iterable
from typing import assert_never

from paged_serve.protocol.channel import FRAMES_PER_TURN, Socket
from paged_serve.protocol.engine_core import (
    AbortRequests,
    ClientHeartbeat,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    FromEngineCore,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    SuspectsHeld,
    SuspectsTurn,
    UtilityCall,
)
from paged_serve.protocol.handshake import check_hello
from paged_serve.protocol.lifecycle import FAREWELL_S, ChildProcess
from paged_serve.protocol.message import Hello, Refused

from .client_ports import ClientPorts, is_remote
from .engine import EngineCore
from .utilities import answer_call
from .welcome import welcome

log = logging.getLogger(__name__)

FromClient = EngineCoreRequest | AbortRequests | OutputsReceived | UtilityCall | ClientHeartbeat | SuspectsHeld


class ClientDesk:
    """Stands between the ports and the engine, which there is only once workers have come. Times are monotonic."""

    def __init__(self, child: ChildProcess):
        self._ports = ClientPorts(child)
        self._failures = child.core_failures
        self._engine: EngineCore | None = None
        self._early: dict[bytes, None] = {}  # said Hello before the engine was there
        self._told: set[bytes] = set()  # clients that received anything since the last beat

    @property
    def sockets(self) -> list[Socket]:
        """To poll for reading."""
        return self._ports.sockets

    def facts_for_people(self) -> dict[str, str]:
        return self._ports.facts_for_people()

    def open(self, engine: EngineCore, now: float) -> None:
        """Let in those who wait."""
        self._engine = engine
        for client in self._early:
            self._welcome(engine, client, now)
        self._early.clear()

    def receive(self, now: float) -> None:
        """Take in what has come."""
        for client, message in self._ports.receive(FRAMES_PER_TURN):
            if isinstance(message, Hello):
                self._greet(client, message, now)
            elif self._engine is not None:
                self._take_in(self._engine, client, message, now)

    def expire(self, now: float) -> None:
        """End requests whose time limit is over."""
        if self._engine is not None and now >= self._engine.next_deadline_s:
            self.send(self._engine.expire(now))

    def advance_trials(self, now: float) -> None:
        """Give the turn to whoever is next; when all is over, let in what came meanwhile."""
        engine = self._engine
        if engine is None:
            return
        for client, message in engine.trials.take_kept(now):
            self._take_in(engine, client, message, now)
        if not engine.scheduler.in_flight and (holder := engine.trials.next_turn(now)) is not None:
            self._tell(holder, SuspectsTurn(engine.epoch, engine.trials.turn))

    def send(self, outgoing: Iterable[tuple[bytes, FromEngineCore]]) -> None:
        for client, message in outgoing:
            self._tell(client, message)

    def beat(self, engine: EngineCore, now: float, *, computes: bool) -> None:
        """Tell quiet clients that the loop goes round, and forget those that are gone."""
        for client in engine.expired_clients(now):
            self._forget(client, "silent")
        self.tell_beat(engine, engine.clients.keys() - self._told, computes=computes)
        self._told.clear()

    def tell_beat(self, engine: EngineCore, clients: Iterable[bytes], *, computes: bool) -> None:
        """`computes`: there are workers."""
        stats = engine.stats()
        for client in list(clients):
            self._tell(client, EngineHeartbeat(engine.scheduler.step, stats, computes))

    def farewell(self, reason: str) -> None:
        """The last words to all."""
        for client in self._engine.clients if self._engine is not None else self._early:
            self._ports.send(client, EngineFailed(reason))

    def close(self) -> None:
        """The last words get half a second to leave."""
        for socket in self.sockets:
            socket.close(linger=int(1000 * FAREWELL_S))

    def _greet(self, client: bytes, hello: Hello, now: float) -> None:
        reason = check_hello(hello)
        if reason:
            log.warning("refused a client role=%s reason=%s", hello.role, reason)
            self._ports.send(client, Refused(reason))
        elif self._engine is None:
            self._early[client] = None
        else:
            self._welcome(self._engine, client, now)

    def _welcome(self, engine: EngineCore, client: bytes, now: float) -> None:
        """Also to one that asks again: it wants to know whether we are still the same, and still know it."""
        known = client in engine.clients
        engine.add_client(client, now)
        engine.heard_from(client, now)
        self._tell(client, welcome(engine, known, self._failures))

    def _take_in(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        """What one message does to us must not end everybody's loop."""
        if client not in engine.clients:
            return
        try:
            self._handle(engine, client, message, now)
        except Exception:
            log.exception("a client's message failed type=%s", type(message).__name__)
            if isinstance(message, EngineCoreRequest):
                reason = "the engine failed to take this request; its log says why"
                self._tell(client, RequestRejected(message.request_id, RejectReason.FAILED, reason))

    def _handle(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        engine.heard_from(client, now)
        match message:
            case EngineCoreRequest():
                self.send(engine.add_request(client, message, now))
            case AbortRequests():
                self.send(engine.abort(client, message, now))
            case OutputsReceived(frames=frames):
                self.send(engine.outputs_received(client, frames))
            case UtilityCall():
                self._tell(client, answer_call(engine, message, now, is_remote=is_remote(client)))
            case SuspectsHeld(count=count) if self._failures:
                engine.trials.suspects_held(client, count)
            case ClientHeartbeat() | SuspectsHeld():
                pass
            case _:
                assert_never(message)

    def _tell(self, client: bytes, message: FromEngineCore) -> None:
        if self._ports.send(client, message):
            self._told.add(client)
        else:
            self._forget(client, "gone, or its queue is full")

    def _forget(self, client: bytes, reason: str) -> None:
        engine = self._engine
        if engine is not None and client in engine.clients:
            log.info("client forgotten reason=%r aborted=%d", reason, len(engine.clients[client].streams))
            engine.remove_client(client, time.monotonic())
