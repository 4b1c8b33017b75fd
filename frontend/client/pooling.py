"""A request for a vector instead of tokens, as the client without asyncio returns it; it is already running."""

from typing import Protocol

from paged_serve.protocol.errors import RequestFailed
from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason

from .streams.deltas import SequenceDelta


class _Source(Protocol):
    @property
    def done(self) -> bool: ...
    def __next__(self) -> SequenceDelta: ...
    def abort(self) -> None: ...


class PoolingAnswer:
    """The vector of a pooling request and the counts that come with it."""

    def __init__(self) -> None:
        self.pooled: Pooled | None = None
        self.times: RequestTimes | None = None
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache

    def take(self, delta: SequenceDelta) -> Pooled:
        """The vector in `delta`. Raises RequestFailed if the engine gave up the request, or if it was aborted."""
        if delta.finish_reason is FinishReason.ABORT:
            raise RequestFailed("the request was aborted")
        if delta.pooled is None:
            raise RequestFailed(delta.error or "the engine sent no vector")
        self.pooled, self.times, self.num_cached_tokens = delta.pooled, delta.times, delta.num_cached_tokens
        return delta.pooled


class PoolingRequest:
    """A request whose `result` waits for the vector. Many may run at once; dropping one aborts it."""

    def __init__(self, request: _Source):
        self._request = request
        self.answer = PoolingAnswer()

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self.answer.pooled is not None or self._request.done

    def result(self) -> Pooled:
        """Wait for the vector. Raises InvalidRequest, Overloaded, RequestExpired, RequestFailed, EngineDead."""
        if self.answer.pooled is None:
            try:
                return self.answer.take(next(self._request))
            except StopIteration:
                raise RequestFailed("the request was aborted") from None
        return self.answer.pooled

    def abort(self) -> None:
        """Has no effect on a request that has ended."""
        self._request.abort()
