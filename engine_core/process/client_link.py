"""The link between the engine core and its clients: receives and dispatches their messages, sends the answers."""

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
from paged_serve.protocol.transport.channel import FRAMES_PER_ITERATION, SECONDS_PER_ITERATION

from ..engine.engine import EngineCore
from .client_sockets import is_remote
from .utility_calls import answer_call

log = logging.getLogger(__name__)

FromClient = EngineCoreRequest | AbortRequests | OutputsReceived | UtilityCall | ClientHeartbeat | CandidatesWithheld


class Sockets(Protocol):
    """The transport of messages to clients: sockets, or the queues of a simulation."""

    def receive(self) -> Iterator[tuple[bytes, ToEngineCore]]: ...

    def take_rejections(self) -> Iterator[tuple[bytes, RequestRejected]]: ...

    def send(self, client: bytes, message: FromEngineCore) -> bool: ...


class ClientLink:
    """Connects the sockets with the engine, which exists once workers are ready. Times are monotonic seconds."""

    def __init__(
        self,
        sockets: Sockets,
        failures: tuple[CoreFailure, ...],
        clock: Callable[[], float] = time.monotonic,
        *,
        run: str = "",
        model: str = "",
    ):
        """`failures`: how former cores ended. `clock`: measures how long an iteration takes. `run`, `model`: as in
        Welcome."""
        self._sockets = sockets
        self._failures = failures
        self._clock = clock
        self._run, self._model = run, model
        self._engine: EngineCore | None = None
        self._early: dict[bytes, None] = {}  # sent Hello before the engine existed
        self._sent_since_heartbeat: set[bytes] = set()
        self.num_failed = 0  # messages whose handling raised an unexpected error

    @property
    def has_work(self) -> bool:
        """Whether deferred messages are ready; no socket signals them."""
        return self._engine is not None and self._engine.admission.core_poison.has_ready

    def open(self, engine: EngineCore, now: float) -> None:
        """Welcome the clients that wait."""
        self._engine = engine
        for client in self._early:
            self._welcome(engine, client, now)
        self._early.clear()

    def receive(self, now: float) -> None:
        """Handle received messages, at most 64 or for 2 ms: the rest waits in its socket for the next iteration."""
        ends = self._clock() + SECONDS_PER_ITERATION
        for count, (client, message) in enumerate(self._sockets.receive(), start=1):
            if isinstance(message, Hello):
                self._greet(client, message, now)
            elif self._engine is not None:
                self._handle(self._engine, client, message, now)
            if count == FRAMES_PER_ITERATION or self._clock() >= ends:
                break
        for client, rejected in self._sockets.take_rejections():
            if self._engine is not None and client in self._engine.clients:
                self._engine.renew_lease(client, now)
                self._send_one(client, rejected, now)

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases by `seconds` in which the core itself did not run."""
        if self._engine is not None and seconds:
            self._engine.extend_leases(seconds)

    def expire(self, now: float) -> None:
        """End requests whose time limit is over."""
        if self._engine is not None and now >= self._engine.next_deadline_s:
            self.send(self._engine.expire(now), now)

    def advance_isolation(self, now: float) -> None:
        """Grant the turn to the next client; after the last turn handle deferred messages, 2 ms per iteration."""
        engine = self._engine
        if engine is None:
            return
        ends = self._clock() + SECONDS_PER_ITERATION
        while (deferred := engine.admission.core_poison.take_deferred(now)) is not None:
            self._handle(engine, *deferred, now)
            if self._clock() >= ends:
                break
        if not engine.scheduler.in_flight and (holder := engine.admission.core_poison.next_turn(now)) is not None:
            self._send_one(holder, IsolationTurn(engine.epoch, engine.admission.core_poison.turn_number), now)

    def send(self, outgoing: Iterable[tuple[bytes, FromEngineCore]], now: float) -> None:
        for client, message in outgoing:
            self._send_one(client, message, now)

    def heartbeat(self, engine: EngineCore, now: float, *, computes: bool) -> None:
        """Send a heartbeat to clients that were sent nothing since the last one, and remove silent clients."""
        for client in engine.expired_clients(now):
            self._remove(client, "silent", now)
        self.send_heartbeat(engine, engine.clients.keys() - self._sent_since_heartbeat, now, computes=computes)
        self._sent_since_heartbeat.clear()

    def send_heartbeat(self, engine: EngineCore, clients: Iterable[bytes], now: float, *, computes: bool) -> None:
        """`computes`: the workers are ready."""
        stats = engine.stats(now)
        for client in sorted(clients):
            self._send_one(client, EngineHeartbeat(engine.scheduler.step, stats, computes), now)

    def announce_end(self, reason: str) -> None:
        """Send EngineFailed to all clients."""
        for client in self._engine.clients if self._engine is not None else self._early:
            self._sockets.send(client, EngineFailed(reason))

    def _greet(self, client: bytes, hello: Hello, now: float) -> None:
        reason = check_hello(hello)
        if reason:
            log.warning("refused a client role=%s reason=%s", hello.role, reason)
            self._sockets.send(client, Refused(reason))
        elif self._engine is None:
            self._early[client] = None
        else:
            self._welcome(self._engine, client, now)

    def _welcome(self, engine: EngineCore, client: bytes, now: float) -> None:
        """Answer Hello. A repeated Hello asks whether this core is the same one and still knows the client."""
        known = client in engine.clients
        engine.add_client(client, now)
        engine.renew_lease(client, now)
        facts = engine.facts
        message = Welcome(
            epoch=engine.epoch,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            block_size=engine.kv_cache.block_size,
            num_blocks=facts.num_blocks,
            max_num_seqs=engine.scheduler.max_num_rows,
            known=known,
            failures=self._failures,
            arithmetic=facts.arithmetic,
            tasks=facts.pooling.tasks,
            embedding_size=facts.pooling.embedding_size,
            num_labels=facts.pooling.num_labels,
            eos_token_ids=tuple(sorted(facts.eos_token_ids)),
            run=self._run,
            model=self._model,
        )
        self._send_one(client, message, now)

    def _handle(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        """Handle one message; an error in it does not end the loop."""
        if client not in engine.clients:
            return
        try:
            self._dispatch(engine, client, message, now)
        except Exception:
            self.num_failed += 1
            log.exception("a client's message failed type=%s", type(message).__name__)
            if isinstance(message, EngineCoreRequest):
                reason = "the engine failed to handle this request; its log has the reason"
                self._send_one(client, RequestRejected(message.request_id, RejectReason.FAILED, reason), now)

    def _dispatch(self, engine: EngineCore, client: bytes, message: FromClient, now: float) -> None:
        engine.renew_lease(client, now)
        match message:
            case EngineCoreRequest():
                self.send(engine.add_request(client, message, now), now)
            case AbortRequests():
                self.send(engine.abort(client, message, now), now)
            case OutputsReceived(frames=frames):
                self.send(engine.outputs_received(client, frames), now)
            case UtilityCall():
                self._send_one(client, answer_call(engine, message, now, is_remote=is_remote(client)), now)
            case CandidatesWithheld(count=count) if self._failures:
                engine.admission.core_poison.candidates_withheld(client, count)
            case ClientHeartbeat() | CandidatesWithheld():
                pass
            case _:
                assert_never(message)

    def _send_one(self, client: bytes, message: FromEngineCore, now: float) -> None:
        """Send `message`, or remove the client if that fails; the answer to its next Hello makes it resend."""
        reason = "gone, or its queue is full"
        try:
            if self._sockets.send(client, message):
                self._sent_since_heartbeat.add(client)
                return
        except ProtocolError as error:  # too large for a frame: a bug of the core
            log.exception("a message to a client cannot be sent")
            reason = str(error)
        self._remove(client, reason, now)

    def _remove(self, client: bytes, reason: str, now: float) -> None:
        engine = self._engine
        if engine is not None and client in engine.clients:
            log.info("client removed reason=%r aborted=%d", reason, len(engine.clients[client].streams))
            engine.remove_client(client, now)
