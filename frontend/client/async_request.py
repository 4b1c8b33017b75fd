"""A request of the client for asyncio: an iterator of its deltas, which aborts it when it is dropped."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from paged_serve.protocol.messages.sampling_params import FinishReason

from .streams.deltas import SequenceDelta
from .streams.request_streams import RequestStreams


class _Client(Protocol):
    def abort(self, streams: RequestStreams, index: int | None, finish_reason: FinishReason) -> None: ...
    def abandon(self, streams: RequestStreams) -> None: ...


class AsyncRequest:
    """A submitted request: iterate for its deltas. One reader at a time."""

    def __init__(self, client: _Client, streams: RequestStreams):
        self._client = client
        self._streams = streams

    @property
    def request_id(self) -> int:
        return self._streams.request_id

    def __aiter__(self) -> "_AsyncDeltas":
        return _AsyncDeltas(self)

    async def __anext__(self) -> SequenceDelta:
        """The next delta. Safe to cancel (by a timeout, say) and call again: no output is lost.

        Raises RuntimeError in a second task at once, which would otherwise wait forever in place of the first.
        """
        streams = self._streams
        if streams.waiter is not None:
            raise RuntimeError("another task is reading this request; a request has one reader at a time")
        while (delta := streams.take()) is None:
            if streams.error is not None:
                raise streams.error
            if streams.done:
                raise StopAsyncIteration
            streams.waiter = asyncio.get_running_loop().create_future()
            try:
                await streams.waiter
            finally:
                streams.waiter = None
        return delta

    def take(self) -> SequenceDelta | None:
        """A delta if one is available, without waiting."""
        return self._streams.take()

    def abort(self, index: int | None = None, finish_reason: FinishReason = FinishReason.ABORT) -> None:
        """End the request, or only sequence `index`; a no-op if it has ended. The last delta has `finish_reason`."""
        self._client.abort(self._streams, index, finish_reason)

    def __del__(self) -> None:
        self._client.abandon(self._streams)


class _AsyncDeltas:
    """The iterator of an `async for`; dropping it, however the loop is left, aborts the request."""

    def __init__(self, request: AsyncRequest):
        self._request = request

    def __aiter__(self) -> "_AsyncDeltas":
        return self

    def __anext__(self) -> Coroutine[Any, Any, SequenceDelta]:  # without a frame, which a traceback would keep
        return self._request.__anext__()

    def __del__(self) -> None:
        self._request._client.abandon(self._request._streams)
