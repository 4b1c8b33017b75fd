"""A request of the client without asyncio: an iterator of its deltas, which aborts it when it is dropped."""

from typing import Protocol

from paged_serve.protocol.messages.sampling_params import FinishReason

from .streams.deltas import SequenceDelta
from .streams.request_streams import RequestStreams


class _Client(Protocol):
    def wait(self) -> None: ...
    def take(self, streams: RequestStreams) -> SequenceDelta | None: ...
    def abort(self, streams: RequestStreams, index: int | None, finish_reason: FinishReason) -> None: ...
    def abandon(self, streams: RequestStreams) -> None: ...


class Request:
    """A submitted request: iterate for its deltas."""

    def __init__(self, client: _Client, streams: RequestStreams):
        self._client = client
        self._streams = streams

    @property
    def request_id(self) -> int:
        return self._streams.request_id

    @property
    def done(self) -> bool:
        """Whether no more deltas will come; iteration ends or raises."""
        return self._streams.done

    def __iter__(self) -> "_Deltas":
        return _Deltas(self)

    def __next__(self) -> SequenceDelta:
        streams = self._streams
        while (delta := self._client.take(streams)) is None:
            self.check()
            if streams.done:
                raise StopIteration
            self._client.wait()
        return delta

    @property
    def streams(self) -> RequestStreams:
        """The argument of `on_output`; stays the same while the request lives."""
        return self._streams

    def take(self) -> SequenceDelta | None:
        """A delta if one is available, without waiting."""
        return self._client.take(self._streams)

    def check(self) -> None:
        """Raise the error that ended the request, if any."""
        if self._streams.error is not None:
            raise self._streams.error

    def abort(self, index: int | None = None, finish_reason: FinishReason = FinishReason.ABORT) -> None:
        """End the request, or only sequence `index`; a no-op if it has ended. The last delta has `finish_reason`."""
        self._client.abort(self._streams, index, finish_reason)

    def __del__(self) -> None:
        self._client.abandon(self._streams)


class _Deltas:
    """The iterator of a `for`; dropping it, however the loop is left, aborts the request."""

    def __init__(self, request: Request):
        self._request = request

    def __iter__(self) -> "_Deltas":
        return self

    def __next__(self) -> SequenceDelta:
        return self._request.__next__()

    def __del__(self) -> None:
        self._request._client.abandon(self._request._streams)
