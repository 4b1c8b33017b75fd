"""Finds the request that kills engine cores: which candidate is computed alone, and what waits meanwhile.

A core dies with all it knows, but its clients have journals and the supervisor counts deaths. After a death that no
signal from outside explains, all requests that the core had are candidates, and their clients withhold them. The next
core gives the turn to one client at a time, which sends one candidate. The candidate is computed alone until it is some
tokens further than it was; then its client gives the turn back. So at most one request is isolated, and its client
knows it, whatever dies and however many clients there are. Turns have numbers: when the core ends by itself, the
supervisor knows in which one.

A core may die of reading a request, so only the candidate in its turn reaches the engine; the others are kept here as
they came. An innocent request ends with an error only if cores break twice by themselves, the second time during its
turn.
"""

import logging
from collections import deque
from dataclasses import dataclass, field

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason, RequestRejected

from ..requests.request import Request
from .backlog import Isolation

Kept = EngineCoreRequest | AbortRequests
MIN_TTL_S = 0.001
RETRY_AFTER_S = 1.0
MESSAGE_BYTES, ID_BYTES = 2048, 40  # of a message itself, and of a token or stream id in a tuple
CHAR_BYTES = 4
IDLE_TURN_S = 15.0  # more than a client's lease

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CorePoison:
    """The turn, the clients in line for it, and the messages that came meanwhile."""

    worker_poison: Isolation
    max_kept: int  # requests
    max_kept_bytes: int = 1 << 26
    _line: dict[bytes, None] = field(default_factory=dict)
    _holder: bytes | None = None  # the client whose turn it is
    _num_turns: int = 0
    _idle_since: float = 0.0  # nothing could be computed in this turn
    _kept: deque[tuple[bytes, Kept, float]] = field(default_factory=deque)  # with when it came
    _kept_bytes: int = 0
    _idlers: set[bytes] = field(default_factory=set)  # clients that have let a turn pass

    @property
    def under_way(self) -> bool:
        return self._holder is not None or bool(self._line)

    @property
    def turn(self) -> int:
        """The number of the turn that is, or that comes next; 0: there will be none."""
        return self._num_turns + (self._holder is None) if self.under_way else 0

    @property
    def is_over(self) -> bool:
        """Nothing waits here."""
        return not self.under_way and not self._kept

    def candidates_withheld(self, client: bytes, count: int) -> None:
        """From a client that has candidates, and whenever a turn of its own is over."""
        if client == self._holder:
            self._end_turn()
        if count and client not in self._idlers:
            self._line[client] = None
        else:
            self._line.pop(client, None)
        self.worker_poison.is_closed = self.under_way

    def remove(self, client: bytes) -> None:
        """It is gone."""
        self._kept = deque(entry for entry in self._kept if entry[0] != client)
        self._kept_bytes = sum(kept_bytes(message) for _, message, _ in self._kept)
        self.candidates_withheld(client, 0)
        self._idlers.discard(client)

    def next_turn(self, now: float) -> bytes | None:
        """Whose turn begins now, if one does. To be called while no step is in flight."""
        self._end_idle_turn(now)
        if self._holder is not None or not self._line:
            return None
        self._num_turns += 1
        self._holder = next(iter(self._line))
        del self._line[self._holder]
        return self._holder

    def admits(self, client: bytes, message: EngineCoreRequest) -> bool:
        """Whether the engine may see it now."""
        return not self.under_way or (client == self._holder and message.isolation_tokens > 0)

    def isolate(self, request: Request, message: EngineCoreRequest) -> None:
        """If it is a candidate in its turn; how far, its client counts from what it has received."""
        if message.isolation_tokens and self.under_way:
            received = [len(ids) // TOKEN_BYTES for ids in message.resume_token_ids] or [0] * len(request.sequences)
            goals = {sequence: received[sequence.index] + message.isolation_tokens for sequence in request.live}
            self.worker_poison.isolate(goals)

    def keep(self, client: bytes, message: EngineCoreRequest, now: float) -> list[tuple[bytes, RequestRejected]]:
        """What is not admitted, unless it is too much."""
        if len(self._kept) < self.max_kept and self._kept_bytes + kept_bytes(message) <= self.max_kept_bytes:
            self._keep(client, message, now)
            return []
        reason = (
            f"{len(self._kept)} messages of {self._kept_bytes} bytes wait until it is known which request killed the "
            f"engine core; at most {self.max_kept} of {self.max_kept_bytes} bytes may"
        )
        rejected = RequestRejected(message.request_id, RejectReason.OVERLOADED, reason, retry_after_s=RETRY_AFTER_S)
        return [(client, rejected)]

    def aborted(self, client: bytes, message: AbortRequests, now: float) -> None:
        """The engine has seen the abort but not the kept requests it names; it is kept behind them, and comes again."""
        own = [kept for name, kept, _ in self._kept if name == client and isinstance(kept, EngineCoreRequest)]
        streams = {kept.request_id + index for kept in own for index in range(kept.sampling_params.n)}
        ids = tuple(streams.intersection(message.stream_ids))
        if ids and len(self._kept) < 2 * self.max_kept:
            self._keep(client, AbortRequests(ids, message.finish_reason), now)

    @property
    def has_ready(self) -> bool:
        """Something was kept that the engine may see now."""
        return bool(self._kept) and not self.under_way

    def take_kept(self, now: float) -> tuple[bytes, Kept] | None:
        """What was kept next, in order, once no candidate is tried any more."""
        if not self.has_ready:
            return None
        client, message, came = self._kept.popleft()
        self._kept_bytes -= kept_bytes(message)
        return client, _aged(message, now - came)

    def _keep(self, client: bytes, message: Kept, now: float) -> None:
        self._kept.append((client, message, now))
        self._kept_bytes += kept_bytes(message)

    def _end_idle_turn(self, now: float) -> None:
        """One in which nothing can be computed for so long, though its client lives, would last for ever."""
        if self._holder is None or self.worker_poison.first() is not None:
            self._idle_since = now
        elif now - self._idle_since > IDLE_TURN_S:
            log.error("a client does not give its turn back, and gets no other client=%r", self._holder)
            self._idlers.add(self._holder)
            self.candidates_withheld(self._holder, 0)

    def _end_turn(self) -> None:
        self._holder = None
        self.worker_poison.end_isolation()


def kept_bytes(message: Kept) -> int:
    """About what it takes in memory: ids that are not packed are objects."""
    if isinstance(message, AbortRequests):
        return MESSAGE_BYTES + ID_BYTES * len(message.stream_ids)
    params = message.sampling_params
    ids = len(params.allowed_token_ids or ()) + len(params.stop_token_ids) + 2 * len(params.logit_bias or ())
    ids += sum(map(len, params.bad_words_token_ids))
    packed = len(message.prompt_token_ids) + sum(map(len, message.resume_token_ids))
    grammar = 0 if params.grammar is None else len(params.grammar.source) * CHAR_BYTES
    return MESSAGE_BYTES + packed + grammar + ID_BYTES * ids


def _aged(message: Kept, seconds: float) -> Kept:
    """What it may wait is less by now."""
    if isinstance(message, AbortRequests) or not message.ttl_s:
        return message
    return msgspec.structs.replace(message, ttl_s=max(message.ttl_s - seconds, MIN_TTL_S))
