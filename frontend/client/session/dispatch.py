"""Decides when requests are sent, and resent, to which engine core. Sans-I/O; part of a client's session."""

import logging
from collections import deque
from dataclasses import dataclass, field

from paged_serve.protocol.errors import EngineDead, InvalidRequest, Overloaded, PagedServeError, RequestExpired
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    CandidatesWithheld,
    EngineCoreOutput,
    IsolationTurn,
    RejectReason,
    RequestRejected,
    ToEngineCore,
    Welcome,
)
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..streams.request_streams import RequestStreams, Stream
from ..streams.stream_table import StreamTable
from .withheld_requests import WithheldRequests

log = logging.getLogger(__name__)

DEADLY = "the engine core died whenever it computed this request"
OTHER_MODEL = "the server was started again with another model or other settings; send the request again"


@dataclass(slots=True)
class Dispatch:
    """Sends requests, and resends them to a core that is new, was full, or has dropped this client."""

    outbox: deque[ToEngineCore]  # the session's
    table: StreamTable = field(default_factory=StreamTable)
    epoch: int = -1  # of the core that was last heard of
    _withheld: WithheldRequests = field(default_factory=WithheldRequests)
    # Streams that ended while the core was away, and that it may still run.
    _ended_while_away: list[int] = field(default_factory=list)

    def send(self, request: RequestStreams, now: float) -> None:
        """Send `request` to the current core, to continue after the last token received."""
        request.resumed |= request.sent_epoch is not None
        request.sent_epoch = self.epoch
        request.retry_at = None
        self.outbox.append(self.table.message(request, now, self._withheld.isolation_tokens(request)))
        if finished := self.table.finished_ids(request):
            self.outbox.append(AbortRequests(finished))

    def send_broken(self, now: float) -> None:
        """Resend the requests with a missing token."""
        for request in self.table.broken:
            log.warning("a frame is missing; sending again request=%d", request.request_id)
            self._send_anew(request, now)
        self.table.broken.clear()

    def abort(self, request: RequestStreams, streams: list[Stream], reason: FinishReason, *, ready: bool) -> None:
        """Abort `streams` of `request`; `ready`: the core is reachable."""
        for stream in streams:
            self.table.abort(stream, reason)
        if ready and request.sent_epoch is not None:
            ids = tuple(request.request_id + stream.index for stream in streams)
            self.outbox.append(AbortRequests(ids, reason))
        else:
            self._finish_aborted(request)

    def core_is_away(self) -> None:
        """Finish aborted requests: there is no core to confirm them."""
        for request in list(self.table.requests.values()):
            self._finish_aborted(request)

    def server_is_new(self, former: Welcome, welcome: Welcome) -> None:
        """Forget the cores of the former server at this address: the epochs of this one begin again.

        Tokens of another model are not continued.
        """
        has_same_model = (welcome.model, welcome.arithmetic) == (former.model, former.arithmetic)
        self._withheld = WithheldRequests()
        for request in list(self.table.requests.values()):
            request.resumed |= request.sent_epoch is not None
            request.sent_epoch = None
            if not has_same_model and any(stream.received for stream in request.streams):
                self.table.fail(request, EngineDead(OTHER_MODEL))

    def core_is_new(self, welcome: Welcome, now: float) -> None:
        """Resend all unfinished requests to a new core, which has none; candidates wait for their turn."""
        self.epoch = welcome.epoch
        for request in list(self.table.requests.values()):
            self._finish_aborted(request)
            request.retry_at = None
        self._ended_while_away.clear()
        poison = self._withheld.update_candidates(self.table.requests.values(), welcome.failures)
        if poison is not None:
            self._give_up(poison)
        self._report_candidates()  # first, so that nothing else is computed at the same time
        self._send_missing(now)

    def core_is_back(self, now: float, *, dropped: bool) -> None:
        """Continue with the same core; `dropped`: it has removed this client and its requests."""
        if self._ended_while_away:
            self.outbox.append(AbortRequests(tuple(self._ended_while_away)))
            self._ended_while_away.clear()
        if dropped and (tried := self._withheld.put_back()) is not None:
            self._leave(tried)
        if dropped:
            self._report_candidates()
        for request in list(self.table.requests.values()):
            if dropped and request.sent_epoch is not None:
                self._send_anew(request, now)
        self._send_missing(now)

    def take_turn(self, message: IsolationTurn, now: float) -> None:
        """Use the isolation turn: the core computes only one of this client's candidates now."""
        if message.epoch != self.epoch:
            return
        if (request := self._withheld.begin_isolation(message.epoch, message.turn)) is None:
            self.outbox.append(CandidatesWithheld(0))
        else:
            self.send(request, now)

    @property
    def is_awaited(self) -> bool:
        return self._withheld.is_awaited

    def end_turn_if_over(self) -> None:
        """Return a finished turn. Called periodically, and after every event that may finish it."""
        if self._withheld.end_isolation_if_over():
            self.outbox.append(CandidatesWithheld(self._withheld.num_withheld))

    def reject(self, message: RequestRejected, now: float) -> None:
        """Handle a rejection: fail the request, or retry it later."""
        request = self.table.requests.get(message.request_id)
        if request is None:
            return
        error: PagedServeError
        if message.reason == RejectReason.INVALID:
            error = InvalidRequest(message.message, message.param or None)
        elif message.reason == RejectReason.FAILED:
            error = EngineDead(message.message)
        elif message.reason == RejectReason.EXPIRED:
            error = RequestExpired(message.message, message.param or None)
        elif request.resumed:  # it was accepted once, so it waits instead of failing
            request.sent_epoch, request.retry_at = None, now + max(message.retry_after_s, 0.1)
            return
        else:
            error = Overloaded(message.message, message.retry_after_s, message.reason == RejectReason.DRAINING)
        self.table.fail(request, error)

    def tick(self, now: float, *, ready: bool) -> None:
        """Handle timers: retries and time limits."""
        self._expire(now, ready=ready)
        if ready:
            for request in list(self.table.requests.values()):
                if request.retry_at is not None and now >= request.retry_at:
                    self.send(request, now)

    def _give_up(self, request: RequestStreams) -> None:
        """End each of its sequences with an error, as the engine does with one that kills workers."""
        log.error("request=%d ends: engine cores died whenever they computed it", request.request_id)
        for stream in request.streams:
            if stream.last is None:
                stream_id, position = request.request_id + stream.index, len(stream.received)
                self.table.finish(stream, EngineCoreOutput(stream_id, position, b"", FinishReason.ERROR, error=DEADLY))

    def _send_missing(self, now: float) -> None:
        for request in list(self.table.requests.values()):
            if request.sent_epoch != self.epoch and request.retry_at is None and request not in self._withheld:
                self.send(request, now)

    def _report_candidates(self) -> None:
        if num_withheld := self._withheld.num_withheld:
            self.outbox.append(CandidatesWithheld(num_withheld))

    def _send_anew(self, request: RequestStreams, now: float) -> None:
        """Resend under new ids, so that no output still in transit can match them."""
        self._leave(request)
        if request.num_unfinished:
            self.send(request, now)

    def _leave(self, request: RequestStreams) -> None:
        """Drop the core's copy of `request`: its outputs no longer matter."""
        self._finish_aborted(request)
        self.outbox.append(AbortRequests(self.table.stream_ids(request)))
        if request.num_unfinished:
            self.table.renumber(request)
            request.sent_epoch, request.resumed = None, True

    def _finish_aborted(self, request: RequestStreams) -> None:
        """Finish the aborted streams of `request`: there is no core to confirm the aborts."""
        for stream in request.streams:
            if stream.aborted is not None and stream.last is None:
                position = len(stream.received)
                stream_id = request.request_id + stream.index
                self._ended_while_away.append(stream_id)
                self.table.finish(stream, EngineCoreOutput(stream_id, position, b"", stream.aborted))

    def _expire(self, now: float, *, ready: bool) -> None:
        """End requests past their time limit; without a core, nothing else does."""
        for request in list(self.table.requests.values()):
            is_away = not ready or request.sent_epoch is None
            if is_away and now >= request.expires_at and request.may_expire:
                self._ended_while_away += self.table.stream_ids(request) if request.sent_epoch is not None else ()
                waited = f"timeout={request.terms.timeout_s:g}: the engine is away, and no token came in time"
                self.table.fail(request, RequestExpired(f"{waited}; raise timeout or send the request again"))
