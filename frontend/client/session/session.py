"""A client's side of the link to the engine core: handshake, leases, credits, restarts. Sans-I/O, under a given clock.

Both clients feed it messages and the time, and flush its messages. A restart of the core appears as EngineFailed or as
silence; the session then sends Hello again, and after Welcome every unfinished request, with the tokens it already has.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from paged_serve.protocol.errors import EngineDead, InvalidRequest, PagedServeError, ProtocolError
from paged_serve.protocol.messages.engine_core import (
    ClientHeartbeat,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    FromEngineCore,
    IsolationTurn,
    OutputsReceived,
    RequestRejected,
    ToEngineCore,
    Utility,
    UtilityResult,
    Welcome,
)
from paged_serve.protocol.messages.message import Hello, Refused
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats

from ...structured_outputs.in_process import with_grammar
from ..request_terms import RequestTerms, check_request, instance_of, listed
from ..streams.request_streams import RequestStreams
from ..streams.stream_table import StreamTable
from .dispatch import Dispatch
from .link_clock import SILENT_AFTER_S, UNPLUGGED_AFTER_S, LinkClock
from .utility_calls import PendingCall, UtilityCalls

log = logging.getLogger(__name__)

CREDITS_PER_MESSAGE = 32  # frames acknowledged together; the core sends 256 ahead


@dataclass(slots=True)
class ClientSession:
    """One client's state. `timeout_s`: how long the first Welcome may take; `away_s`: how long a restart may."""

    hello: Hello
    now: float
    timeout_s: float
    away_s: float
    limits: Welcome | None = None
    stats: SchedulerStats | None = None
    ready: bool = False
    computes: bool = True  # the engine has workers
    error: PagedServeError | None = None  # final
    abandoned: deque[RequestStreams] = field(default_factory=deque)  # filled by garbage collection, in any thread
    outbox: deque[ToEngineCore] = field(default_factory=deque)
    num_invalid: int = 0
    _calls: UtilityCalls = field(default_factory=UtilityCalls)
    _clock: LinkClock = field(init=False)
    _dispatch: Dispatch = field(init=False)
    _frames: int = 0  # taken and not yet acknowledged

    def __post_init__(self) -> None:
        self._clock = LinkClock(self.now)
        self._dispatch = Dispatch(self.outbox)

    @property
    def table(self) -> StreamTable:
        """The requests that have not ended."""
        return self._dispatch.table

    # -- called by the owner of the client

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        terms: RequestTerms | None = None,
        on_output: Callable[[RequestStreams], None] | None = None,
        now: float | None = None,
        pooling_params: PoolingParams | None = None,
    ) -> RequestStreams:
        """Accept a request. An invalid one gets its `error` set, so that readers find all errors in one place.

        With `pooling_params` the result is a vector instead of tokens. The time limit counts from `now`; None: from
        the session's latest time.
        """
        self.now = self.now if now is None else now
        try:
            sampling_params = with_grammar(instance_of(SamplingParams, sampling_params, "sampling_params"))
        except InvalidRequest as error:
            return self.table.add_failed(error, SamplingParams(), terms, on_output)
        try:
            request = self.table.add(listed(prompt_token_ids), sampling_params, terms, on_output, pooling_params)
        except (OverflowError, TypeError):
            invalid = InvalidRequest("token ids must be integers of 32 bits, in a list", "prompt_token_ids")
            return self.table.add_failed(invalid, sampling_params, terms, on_output)
        try:
            if self.error is not None:
                raise self.error
            check_request(prompt_token_ids, sampling_params, pooling_params, request.terms, self.limits)
        except PagedServeError as error:
            self.table.fail(request, error)
        else:
            if request.terms.timeout_s:
                request.expires_at = self.now + request.terms.timeout_s
            if self.ready:
                self._dispatch.send(request, self.now)
        return request

    def abort(
        self, request: RequestStreams, index: int | None = None, finish_reason: FinishReason = FinishReason.ABORT
    ) -> None:
        """End a request or one of its sequences; a no-op for ended sequences. Raises InvalidRequest."""
        instance_of(FinishReason, finish_reason, "finish_reason")
        streams = [s for s in request.streams if s.last is None and s.aborted is None and index in (None, s.index)]
        if request.error is None and streams:
            self._dispatch.abort(request, streams, finish_reason, ready=self.ready)

    def call(self, utility: Utility, on_done: Callable[[], None] | None = None) -> PendingCall:
        pending = self._calls.start(instance_of(Utility, utility, "utility"), on_done, self.error)
        if not pending.done:
            self.outbox.append(pending.call)
        return pending

    def end_call(self, pending: PendingCall) -> bytes:
        """The answer to a call that is over, or whose caller waits no longer."""
        return self._calls.end(pending)

    def shed(self, num_bytes: int, error: PagedServeError) -> None:
        """End requests with `error`, those with the most unread bytes first, until `num_bytes` bytes are free."""
        for request in self.table.unread():
            if num_bytes <= 0 or not request.undelivered_bytes:
                return
            num_bytes -= request.undelivered_bytes
            self.abort(request)
            self.table.drop_undelivered(request)
            if request.error is None:
                self.table.fail(request, error)

    def fail(self, error: PagedServeError) -> None:
        """End the session: every request and call fails with `error`."""
        self.error, self.ready = error, False
        self.outbox.clear()
        for request in list(self.table.requests.values()):
            self.table.fail(request, error)
        self._calls.fail(error)

    def abort_all(self) -> None:
        for request in list(self.table.requests.values()):
            self.abort(request)

    # -- called by the I/O shell

    @property
    def backlog(self) -> bool:
        """Whether a message waits to be sent."""
        return self.error is None and (self._clock.hello_is_due or (self.ready and bool(self.outbox)))

    @property
    def is_awaited(self) -> bool:
        """Whether the core isolates a request of this client, or will, while all others wait."""
        return self._dispatch.is_awaited

    def flush(self, send: Callable[[ToEngineCore], bool]) -> None:
        """Send waiting messages; those that `send` does not accept stay queued."""
        if self.error is not None:
            return
        if self._clock.hello_is_due and send(self.hello):
            self._clock.hello_is_due = False
        while self.ready and self.outbox and self._send(self.outbox[0], send):
            self.outbox.popleft()

    def receive(self, message: FromEngineCore, now: float) -> None:
        if self.error is not None:
            return
        self.now = now
        self._clock.heard(now)
        match message:
            case EngineCoreOutputs():
                self._receive_outputs(message)
            case EngineHeartbeat(stats=stats, computes=computes):
                self.stats, self.computes = stats or self.stats, computes
                self._acknowledge()
            case Welcome():
                self._welcome(message)
            case RequestRejected():
                self._dispatch.reject(message, now)
            case UtilityResult():
                self._calls.finish(message)
            case IsolationTurn():
                self._dispatch.take_turn(message, now)
            case EngineFailed():
                log.warning("engine core failed reason=%s", message.reason)
                self._away(now)
            case Refused():
                self.fail(EngineDead(f"the engine core refused this client: {message.reason}"))
            case _:
                assert_never(message)
        self._abort_abandoned()
        self._dispatch.end_turn_if_over()

    def silence(self, now: float) -> float:
        """Seconds since the core last spoke."""
        return self._clock.silence(now)

    def unplugged(self, now: float) -> None:
        """The core's end of the link is gone, or takes nothing more."""
        if self.ready and self._clock.silence(now) > UNPLUGGED_AFTER_S:
            log.warning("engine core gone")
            self._away(now)

    def tick(self, now: float) -> None:
        """Handle timers; must be called several times per second."""
        if self.error is not None:
            return
        self.now = now
        if not self._clock.tick(now):
            self._away(now)
        silence = self._clock.silence(now)
        if self.ready and silence > SILENT_AFTER_S:
            log.warning("engine core silent silence_s=%.1f", silence)
            self._away(now)
        self._clock.ask_again(now, self.ready)
        limit = self.timeout_s if self.limits is None else self.away_s
        if not self.ready and silence > limit:
            self.fail(EngineDead(f"no answer from the engine core for {limit:g} s"))
            return
        self._acknowledge()
        self._dispatch.tick(now, ready=self.ready)
        self._abort_abandoned()
        self._dispatch.end_turn_if_over()
        if self.ready and not self.outbox and self._clock.beat_is_due(now):
            self.outbox.append(ClientHeartbeat())

    def _send(self, message: ToEngineCore, send: Callable[[ToEngineCore], bool]) -> bool:
        try:
            return send(message)
        except ProtocolError as error:  # too large; only a request can be
            if not isinstance(message, EngineCoreRequest):
                raise
            if (request := self.table.requests.get(message.request_id)) is not None:
                self.table.fail(request, InvalidRequest(f"the request is too large: {error}"))
            return True

    def _receive_outputs(self, message: EngineCoreOutputs) -> None:
        if self.limits is None or message.epoch != self.limits.epoch:
            return
        try:
            self.table.receive(message)
        except ValueError as error:  # an invalid column; an incomplete stream is noticed below
            self.num_invalid += 1
            log.warning("dropped a frame step=%d reason=%s", message.step, error)
        if message.stats is not None:
            self.stats = message.stats
        self._dispatch.send_broken(self.now)
        self._frames += 1
        if self._frames >= CREDITS_PER_MESSAGE:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._frames and self.ready:
            self.outbox.append(OutputsReceived(self._frames))
            self._frames = 0

    def _welcome(self, message: Welcome) -> None:
        if (former := self.limits) is not None and message.run != former.run:
            self._dispatch.server_is_new(former, message)
            self.limits = None
        if self.limits is not None and message.epoch < self.limits.epoch:
            return  # of a dead core, received after that of its successor
        same = self.limits is not None and self.limits.epoch == message.epoch
        dropped = same and not message.known
        self.limits, self.ready, self.computes = message, True, True
        if not same:
            self.outbox.clear()
            self._frames = 0
            self.outbox += self._calls.unanswered
            self._dispatch.core_is_new(message, self.now)
            return
        if dropped:
            log.warning("the engine core had dropped this client; sending again requests=%d", len(self.table.requests))
            self.outbox += [call for call in self._calls.unanswered if call not in self.outbox]
        self._dispatch.core_is_back(self.now, dropped=dropped)

    def _away(self, now: float) -> None:
        if self.ready:
            self.ready = False
            self._clock.ask(now)
        self._dispatch.core_is_away()

    def _abort_abandoned(self) -> None:
        while self.abandoned:
            self.abort(request := self.abandoned.popleft())
            self.table.drop_undelivered(request)
