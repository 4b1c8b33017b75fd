"""Finds the request that kills engine cores: selects the candidate that is computed alone and defers the others.

The state of a core is lost when it dies, but clients keep journals and the supervisor counts failures. After a failure
that no external signal explains, every request of the core is a candidate, and its client withholds it. The next core
grants the isolation turn to one client at a time, which sends one candidate. The candidate is computed alone until it
has passed its former position by some tokens; then its client returns the turn. At most one request is isolated, and
its client knows which, whatever process dies and however many clients there are. Turns are numbered, and the supervisor
confirms each before it begins, so it knows in which turn a core failed.

Handling a request may already kill a core, so only the candidate of the current turn reaches the engine; other
messages are deferred. If a core fails in a turn, its candidate has another one before the others of its client; if a
core fails again, it ends with an error. A harmless request ends only if three cores fail for other reasons, two of them
during its turns.
"""

import logging
from collections import deque
from dataclasses import dataclass, field

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason, RequestRejected

from ..requests.request import Request
from .backlog import Isolation

Deferred = EngineCoreRequest | AbortRequests
MIN_TTL_S = 0.001
RETRY_AFTER_S = 1.0
MESSAGE_BYTES, ID_BYTES = 2048, 40  # of a message itself, and of a token or stream id in a tuple
CHAR_BYTES = 4
IDLE_TURN_S = 15.0  # more than a client's lease

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CorePoison:
    """The current isolation turn, the clients that wait for one, and the messages deferred meanwhile."""

    worker_poison: Isolation
    max_deferred: int  # requests
    max_deferred_bytes: int = 1 << 26
    _line: dict[bytes, None] = field(default_factory=dict)
    _holder: bytes | None = None  # the client that has the turn
    _num_ticks: int = 0
    _recorded_turn: int = 0  # the turn that the supervisor would attribute this core's end to
    _idle_since: float = 0.0  # since when the turn has had nothing to compute
    _deferred: deque[tuple[bytes, Deferred, float]] = field(default_factory=deque)  # with its arrival time
    _deferred_bytes: int = 0
    _timed_out: set[bytes] = field(default_factory=set)  # clients whose turn timed out

    @property
    def is_in_progress(self) -> bool:
        return self.turn_number != 0 or self._recorded_turn != 0

    @property
    def turn_number(self) -> int:
        """Number of the current or the next isolation turn; 0 if there is none."""
        return self._num_ticks + (self._holder is None) if self._holder is not None or self._line else 0

    @property
    def is_over(self) -> bool:
        """No candidate and no deferred message is left."""
        return not self.is_in_progress and not self._deferred

    def candidates_withheld(self, client: bytes, count: int) -> None:
        """Sent by a client that has candidates, and at the end of each of its turns."""
        if client == self._holder:
            self._end_turn()
        if count and client not in self._timed_out:
            self._line[client] = None
        else:
            self._line.pop(client, None)
        self.worker_poison.is_closed = self.is_in_progress

    def remove(self, client: bytes) -> None:
        """Drop the deferred messages and the turn of a disconnected client."""
        self._deferred = deque(entry for entry in self._deferred if entry[0] != client)
        self._deferred_bytes = sum(message_bytes(message) for _, message, _ in self._deferred)
        self.candidates_withheld(client, 0)
        self._timed_out.discard(client)

    def record(self, turn: int) -> None:
        """From now on the supervisor attributes the end of this core to `turn`: only that one may begin."""
        self._recorded_turn = turn
        self.worker_poison.is_closed = self.is_in_progress

    def next_turn(self, now: float) -> bytes | None:
        """The client whose turn begins now, or None. Requires that no step is in flight."""
        self._end_idle_turn(now)
        if self._holder is not None or not self._line or self._recorded_turn != self.turn_number:
            return None
        self._num_ticks += 1
        self._holder = next(iter(self._line))
        del self._line[self._holder]
        return self._holder

    def extend_turn(self, seconds: float) -> None:
        """Extend the current turn by a time in which the core did not run."""
        self._idle_since += seconds

    def admits(self, client: bytes, message: EngineCoreRequest) -> bool:
        """Whether `message` may be passed to the engine now."""
        return not self.is_in_progress or (client == self._holder and message.isolation_tokens > 0)

    def isolate(self, request: Request, message: EngineCoreRequest) -> None:
        """Isolate `request` if it is the candidate of the turn, until its client has `isolation_tokens` more tokens."""
        if message.isolation_tokens and self.is_in_progress:
            received = [len(ids) // TOKEN_BYTES for ids in message.resume_token_ids] or [0] * len(request.sequences)
            goals = {sequence: received[sequence.index] + message.isolation_tokens for sequence in request.live}
            self.worker_poison.isolate(goals)

    def defer(self, client: bytes, message: EngineCoreRequest, now: float) -> list[tuple[bytes, RequestRejected]]:
        """Defer a message that is not admitted; it is rejected when the limits are reached."""
        num_bytes = self._deferred_bytes + message_bytes(message)
        if len(self._deferred) < self.max_deferred and num_bytes <= self.max_deferred_bytes:
            self._defer(client, message, now)
            return []
        reason = (
            f"{len(self._deferred)} messages of {self._deferred_bytes} bytes wait until it is known which request "
            f"killed the engine core; at most {self.max_deferred} of {self.max_deferred_bytes} bytes may"
        )
        rejected = RequestRejected(message.request_id, RejectReason.OVERLOADED, reason, retry_after_s=RETRY_AFTER_S)
        return [(client, rejected)]

    def aborted(self, client: bytes, message: AbortRequests, now: float) -> None:
        """Defer an abort behind the deferred requests that it names: the engine does not know them yet."""
        own = [each for name, each, _ in self._deferred if name == client and isinstance(each, EngineCoreRequest)]
        streams = {each.request_id + index for each in own for index in range(each.sampling_params.n)}
        ids = tuple(streams.intersection(message.stream_ids))
        if ids and len(self._deferred) < 2 * self.max_deferred:
            self._defer(client, AbortRequests(ids, message.finish_reason), now)

    @property
    def has_ready(self) -> bool:
        """A deferred message may be passed to the engine now."""
        return bool(self._deferred) and not self.is_in_progress

    def take_deferred(self, now: float) -> tuple[bytes, Deferred] | None:
        """The oldest deferred message, once isolation is over; else None."""
        if not self.has_ready:
            return None
        client, message, came = self._deferred.popleft()
        self._deferred_bytes -= message_bytes(message)
        return client, _aged(message, now - came)

    def _defer(self, client: bytes, message: Deferred, now: float) -> None:
        self._deferred.append((client, message, now))
        self._deferred_bytes += message_bytes(message)

    def _end_idle_turn(self, now: float) -> None:
        """End a turn in which nothing could be computed for IDLE_TURN_S, or it would never end."""
        if self._holder is None or self.worker_poison.first() is not None:
            self._idle_since = now
        elif now - self._idle_since > IDLE_TURN_S:
            log.error("isolation turn timed out; its client gets no further turn client=%r", self._holder)
            self._timed_out.add(self._holder)
            self.candidates_withheld(self._holder, 0)

    def _end_turn(self) -> None:
        self._holder = None
        self.worker_poison.end_isolation()


def message_bytes(message: Deferred) -> int:
    """Approximate size in memory: ids that are not packed are objects."""
    if isinstance(message, AbortRequests):
        return MESSAGE_BYTES + ID_BYTES * len(message.stream_ids)
    params = message.sampling_params
    ids = len(params.allowed_token_ids or ()) + len(params.stop_token_ids) + 2 * len(params.logit_bias or ())
    ids += sum(map(len, params.bad_words_token_ids))
    packed = len(message.prompt_token_ids) + sum(map(len, message.resume_token_ids))
    grammar = 0
    if params.grammar is not None:
        ids += len(params.grammar.after) + len(params.grammar.opens)
        grammar = len(params.grammar.source) * CHAR_BYTES
    if params.dry is not None:
        ids += len(params.dry.breaker_token_ids)
    if params.thinking is not None:
        ids += len(params.thinking.begin) + len(params.thinking.end)
    return MESSAGE_BYTES + packed + grammar + ID_BYTES * ids


def _aged(message: Deferred, seconds: float) -> Deferred:
    """`message` with its time limit reduced by the time that it was deferred."""
    if isinstance(message, AbortRequests) or not message.ttl_s:
        return message
    return msgspec.structs.replace(message, ttl_s=max(message.ttl_s - seconds, MIN_TTL_S))
