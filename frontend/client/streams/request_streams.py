"""One request of a client and its sequences: the received outputs of each, and those not yet read."""

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.errors import PagedServeError
from paged_serve.protocol.messages.engine_core import EngineCoreOutput
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..request_terms import RequestTerms
from .deltas import SequenceDelta
from .packed_logprobs import PackedLogprobs

MAX_DELTA_TOKENS = 128  # with logprobs, which take ten times more once they are decoded


class Stream:
    """One sequence of one request."""

    __slots__ = (
        "aborted",
        "delivered",
        "index",
        "last",
        "logprobs",
        "pooled",
        "prompt_logprobs",
        "queued",
        "received",
        "request",
        "started",
    )

    def __init__(self, request: "RequestStreams", index: int):
        self.request = request
        self.index = index
        self.received = array("i")  # the journal: every output token so far
        self.delivered = 0  # tokens of it that the reader has
        self.queued = False  # stands in request.ready
        self.started = False  # its first output has come
        self.aborted: FinishReason | None = None  # later tokens are dropped; the engine's finish is awaited
        self.logprobs: PackedLogprobs | None = None  # of the tokens not yet delivered
        self.prompt_logprobs: PackedLogprobs | None = None
        self.pooled: Pooled | None = None  # until the reader has it
        self.last: EngineCoreOutput | None = None  # carries the finish_reason

    @property
    def undelivered_bytes(self) -> int:
        """Bytes that wait for the reader."""
        packed = [each.num_bytes for each in (self.logprobs, self.prompt_logprobs) if each is not None]
        vector = 0 if self.pooled is None else len(self.pooled.values)
        return TOKEN_BYTES * (len(self.received) - self.delivered) + sum(packed) + vector

    @property
    def has_more(self) -> bool:
        """Whether the last `take` left output behind."""
        return self.delivered < len(self.received)

    def take(self, num_cached_tokens: int) -> SequenceDelta:
        received, start = self.received, self.delivered
        end = len(received) if self.logprobs is None else min(len(received), start + MAX_DELTA_TOKENS)
        self.delivered = end
        delta = SequenceDelta(self.index, received[start:end].tolist(), num_cached_tokens=num_cached_tokens)
        if self.logprobs is not None:
            delta.logprobs = self.logprobs.take(end - start)
        if self.prompt_logprobs is not None:
            delta.prompt_logprobs = self.prompt_logprobs.take(self.prompt_logprobs.num_tokens)
            self.prompt_logprobs = None
        if (last := self.last) is not None and end == len(received):
            delta.finish_reason, delta.stop_token_id = last.finish_reason, last.stop_token_id
            delta.times, delta.error, delta.param = last.times, last.error, last.param
            delta.pooled, self.pooled = self.pooled, None
        return delta


@dataclass(slots=True)
class UndeliveredCount:
    """Bytes of unread outputs, over all requests of a table."""

    num_bytes: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class RequestStreams:
    """One request, from submit to its last finish; `request_id` is also its first stream's id."""

    request_id: int
    prompt_token_ids: bytes  # packed
    sampling_params: SamplingParams
    pooling_params: PoolingParams | None = None  # a vector is wanted, no tokens
    terms: RequestTerms = field(default_factory=RequestTerms)
    expires_at: float = math.inf  # by the session's clock; no token may come first after it
    streams: list[Stream] = field(default_factory=list)
    ready: deque[Stream] = field(default_factory=deque)  # those with note_output, each once
    num_unfinished: int = 0
    num_cached_tokens: int = 0
    sent_epoch: int | None = None  # the epoch of the core that has the request
    resumed: bool = False  # an earlier core had accepted it
    num_deaths: int = 0  # of cores that it may have killed
    num_deadly_isolations: int = 0  # in which a core failed, since the last that cleared it
    retry_at: float | None = None  # when to send it again to a new core that was too full
    error: PagedServeError | None = None  # ends the request once `ready` is empty
    on_output: Callable[["RequestStreams"], None] | None = None
    waiter: Any = None  # of the asyncio or threading client
    undelivered: UndeliveredCount = field(default_factory=UndeliveredCount)  # of the table

    def take(self) -> SequenceDelta | None:
        """The next delta, or None: nothing yet or, if `done`, nothing any more."""
        if not self.ready:
            return None
        stream = self.ready.popleft()
        before = stream.undelivered_bytes
        delta = stream.take(self.num_cached_tokens)
        self.undelivered.num_bytes -= before - stream.undelivered_bytes
        stream.queued = stream.has_more
        if stream.queued:
            self.ready.append(stream)
        return delta

    @property
    def undelivered_bytes(self) -> int:
        """Bytes that wait for the reader, over all sequences."""
        return sum(stream.undelivered_bytes for stream in self.streams)

    @property
    def may_expire(self) -> bool:
        """Whether it has a time limit and no token yet."""
        return self.expires_at < math.inf and not any(stream.received for stream in self.streams)

    @property
    def ended(self) -> bool:
        """Whether no more output will arrive; some may still be unread."""
        return self.num_unfinished == 0 or self.error is not None

    @property
    def done(self) -> bool:
        return not self.ready and self.ended

    def note_output(self, stream: Stream) -> None:
        if not stream.queued:
            stream.queued = True
            self.ready.append(stream)
        if self.on_output is not None:
            self.on_output(self)
