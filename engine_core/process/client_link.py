"""Everything that clients send to the engine core's process, and everything that it sends them."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, assert_never

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    CandidatesWithheld,
    ClientHeartbeat,
    CoreFailure,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    FromEngineCore,
    IsolationTurn,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    ToEngineCore,
    UtilityCall,
    Welcome,
)
from paged_serve.protocol.messages.handshake import check_hello
from paged_serve.protocol.messages.message import Hello, Refused
from paged_serve.protocol.transport.channel import FRAMES_PER_TURN, SECONDS_PER_TURN

from ..engine.engine import EngineCore
from .client_sockets import is_remote
from .utility_calls import answer_call

log = logging.getLogger(__name__)

FromClient = EngineCoreRequest | AbortRequests | OutputsReceived | UtilityCall | ClientHeartbeat | CandidatesWithheld


class Sockets(Protocol):
    """What carries the messages: sockets, or a simulation's queues."""

    def receive(self) -> Iterator[tuple[bytes, ToEngineCore]]: ...

    def take_rejections(self) -> Iterator[tuple[bytes, RequestRejected]]: ...

    def send(self, client: bytes, message: FromEngineCore) -> bool: ...


class ClientLink:
    """Stands between the ports and the engine, which there is only once workers have come. Times are monotonic."""

    def __init__(self, ports: Sockets, failures: tuple[CoreFailure, ...], clock: Callable[[], float] = time.monotonic):
        """`failures`: how former cores ended. `clock`: measures how long a turn takes."""
        self._ports = ports
        self._failures = failures
        self._clock = clock
        self._engine: EngineCore | None = None
        self._early: dict[bytes, None] = {}  # said Hello before the engine was there
        self._told: set[bytes] = set()  # clients that received anything since the last beat
        self.num_failed = 0  # messages that an error of ours, not of the client's, has ended

    @property
    def has_work(self) -> bool:
        """Messages wait here that no socket announces."""
        return self._engine is not None and self._engine.admission.core_poison.has_ready

    def open(self, engine: EngineCore, now: float) -> None:
        """Let in the clients that wait."""
        self._engine = engine
        for client in self._early:
            self._welcome(engine, client, now)
        self._early.clear()

    def receive(self, now: float) -> None:
        """Take in what has come, for 64 messages or 2 ms: the rest waits in its socket for the next turn."""
        ends = self._clock() + SECONDS_PER_TURN
        for count, (client, message) in enumerate(self._ports.receive(), start=1):
            if isinstance(message, Hello):
                self._greet(client, message, now)
            elif self._engine is not None:
                self._take_in(self._engine, client, message, now)
            if count == FRAMES_PER_TURN or self._clock() >= ends:
                break
        for client, rejected in self._ports.take_rejections():
            if self._engine is not None and client in self._engine.clients:
                self._engine.heard_from(client, now)
                self._send(client, rejected, now)

    def excuse(self, seconds: float) -> None:
        """The core itself did not run for so long: that is no client's silence."""
        if self._engine is not None and seconds:
            self._engine.excuse_clients(seconds)

    def expire(self, now: float) -> None:
        """End requests whose time limit is over."""
        if self._engine is not None and now >= self._engine.next_deadline_s:
            self.send(self._engine.expire(now), now)

    def advance_isolation(self, now: float) -> None:
        """Give the turn to the next client; when all is over, let in what came meanwhile, for 2 ms a turn."""
        engine = self._engine
        if engine is None:
            return
        ends = self._clock() + SECONDS_PER_TURN
        while (kept := engine.admission.core_poison.take_kept(now)) is not None:
            self._take_in(engine, *kept, now)
            if self._clock() >= ends:
                break
        if not engine.scheduler.in_flight and (holder := engine.admission.core_poison.next_turn(now)) is not None:
            self._send(holder, IsolationTurn(engine.epoch, engine.admission.core_poison.turn), now)

    def send(self, outgoing: Iterable[tuple[bytes, FromEngineCore]], now: float) -> None:
        for client, message in outgoing:
            self._send(client, message, now)

    def beat(self, engine: EngineCore, now: float, *, computes: bool) -> None:
        """Let quiet clients know that the loop goes round, and remove those that are gone."""
        for client in engine.expired_clients(now):
            self._remove(client, "silent", now)
        self.tell_beat(engine, engine.clients.keys() - self._told, now, computes=computes)
        self._told.clear()

    def tell_beat(self, engine: EngineCore, clients: Iterable[bytes], now: float, *, computes: bool) -> None:
        """`computes`: there are workers."""
        stats = engine.stats(now)
        for client in sorted(clients):
            self._send(client, EngineHeartbeat(engine.scheduler.step, stats, computes), now)

    def farewell(self, reason: str) -> None:
        """The last words to all."""
        for client in self._engine.clients if self._engine is not None else self._early:
            self._ports.send(client, EngineFailed(reason))

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
        self._send(client, welcome(engine, known, self._failures), now)

    def _take_in(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        """What one message does must not end the loop."""
        if client not in engine.clients:
            return
        try:
            self._handle(engine, client, message, now)
        except Exception:
            self.num_failed += 1
            log.exception("a client's message failed type=%s", type(message).__name__)
            if isinstance(message, EngineCoreRequest):
                reason = "the engine failed to take this request; its log says why"
                self._send(client, RequestRejected(message.request_id, RejectReason.FAILED, reason), now)

    def _handle(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        engine.heard_from(client, now)
        match message:
            case EngineCoreRequest():
                self.send(engine.add_request(client, message, now), now)
            case AbortRequests():
                self.send(engine.abort(client, message, now), now)
            case OutputsReceived(frames=frames):
                self.send(engine.outputs_received(client, frames), now)
            case UtilityCall():
                self._send(client, answer_call(engine, message, now, is_remote=is_remote(client)), now)
            case CandidatesWithheld(count=count) if self._failures:
                engine.admission.core_poison.candidates_withheld(client, count)
            case ClientHeartbeat() | CandidatesWithheld():
                pass
            case _:
                assert_never(message)

    def _send(self, client: bytes, message: FromEngineCore, now: float) -> None:
        """A client that cannot be reached has lost its place; its next answer says so, and it repeats requests."""
        reason = "gone, or its queue is full"
        try:
            if self._ports.send(client, message):
                self._told.add(client)
                return
        except ProtocolError as error:  # too large for a frame, which nothing that we make should be
            log.exception("a message to a client cannot be sent")
            reason = str(error)
        self._remove(client, reason, now)

    def _remove(self, client: bytes, reason: str, now: float) -> None:
        engine = self._engine
        if engine is not None and client in engine.clients:
            log.info("client forgotten reason=%r aborted=%d", reason, len(engine.clients[client].streams))
            engine.remove_client(client, now)


def welcome(engine: EngineCore, known: bool, failures: tuple[CoreFailure, ...]) -> Welcome:
    """`known`: the client has been here before; `failures`: how former cores ended."""
    facts = engine.facts
    return Welcome(
        epoch=engine.epoch,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=engine.kv_cache.block_size,
        num_blocks=facts.num_blocks,
        max_num_seqs=engine.scheduler.max_num_rows,
        known=known,
        failures=failures,
        arithmetic=facts.arithmetic,
    )
