"""A request for a vector instead of tokens, as the client for asyncio returns it; it is already running."""

import asyncio
from collections.abc import Generator
from typing import Any, Protocol

from paged_serve.protocol.messages.pooling_params import Pooled

from .pooling import PoolingAnswer
from .streams.deltas import SequenceDelta


class _AsyncSource(Protocol):
    async def __anext__(self) -> SequenceDelta: ...
    def abort(self) -> None: ...


class AsyncPoolingRequest:
    """Await it for the vector, any number of times. Cancelling or dropping it before that aborts it.

    Raises InvalidRequest, Overloaded, RequestExpired, RequestFailed, EngineDead.
    """

    def __init__(self, request: _AsyncSource):
        self._request = request
        self.answer = PoolingAnswer()

    def __await__(self) -> Generator[Any, None, Pooled]:
        return self._vector().__await__()

    def abort(self) -> None:
        """Has no effect on a request that has ended."""
        self._request.abort()

    async def _vector(self) -> Pooled:
        if self.answer.pooled is None:
            try:
                return self.answer.take(await self._request.__anext__())
            except asyncio.CancelledError:
                self._request.abort()
                raise
        return self.answer.pooled
