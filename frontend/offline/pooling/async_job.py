"""One request of AsyncLLM.encode, from its arrival to its vector."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from paged_serve.protocol.errors import Overloaded, RequestFailed

from ...client.async_client import AsyncClient
from ...client.async_pooling import AsyncPoolingRequest
from ...text.off_loop import LONG, off_loop
from ..in_flight import InFlightLimit
from .batch import MAX_RETRY_S, MIN_RETRY_S
from .outputs import Answered, PoolingRequestOutput, pooling_output
from .prompts import PoolingJob


class AsyncPoolingJob:
    """Call `output`, then `end` whatever happens. `abort` may be called at any time."""

    def __init__(self, request_id: str, client: AsyncClient, limit: InFlightLimit):
        self.request_id = request_id
        self._client = client
        self._limit = limit
        self._entry: asyncio.Future[bool] | None = None
        self._request: AsyncPoolingRequest | None = None
        self._aborted = asyncio.Event()

    async def output(
        self, make: Callable[[], PoolingJob], threads: ThreadPoolExecutor, priority: int
    ) -> PoolingRequestOutput:
        """Run the job that `make` builds; `make` is slow, so it is called in a thread.

        Raises what AsyncPoolingRequest and `make` raise, and RequestFailed if the job was aborted.
        """
        job = await off_loop(threads, LONG, make)
        if not await self._enter(priority):
            raise RequestFailed("the request was aborted")
        return pooling_output(await self._vector(job, priority), self.request_id)

    async def _enter(self, priority: int) -> bool:
        """Wait until the job may be submitted to the engine. Returns False if it was aborted first."""
        self._entry = self._limit.entry(1, priority)
        if self._aborted.is_set() and not self._entry.done():
            self._entry.set_result(False)
        return await self._entry and not self._aborted.is_set()

    async def _vector(self, job: PoolingJob, priority: int) -> Answered:
        while True:
            request = self._request = self._client.pool(
                job.token_ids, job.params, priority=priority, cache_salt=job.cache_salt, adapter=job.adapter
            )
            if self._aborted.is_set():
                request.abort()
            try:
                return Answered(job, await request, request.answer)
            except Overloaded as full:  # by other clients' requests
                if full.draining:
                    raise
                with contextlib.suppress(TimeoutError):
                    wait_s = min(max(full.retry_after_s, MIN_RETRY_S), MAX_RETRY_S)
                    await asyncio.wait_for(self._aborted.wait(), wait_s)

    def abort(self) -> None:
        """Has no effect on a job that has ended."""
        self._aborted.set()
        if self._entry is not None and not self._entry.done():
            self._entry.set_result(False)
        if self._request is not None:
            self._request.abort()

    def end(self) -> None:
        """The caller has its vector or no longer wants it."""
        self.abort()
        entry = self._entry
        if entry is not None and not entry.cancelled() and entry.result():
            self._limit.leave(1)
