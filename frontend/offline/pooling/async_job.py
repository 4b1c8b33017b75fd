"""One request of AsyncLLM.encode, from its arrival to its vector."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from paged_serve.protocol.errors import Overloaded, RequestFailed

from ...client.async_client import AsyncClient
from ...client.async_pooling import AsyncPoolingRequest
from ...text.off_loop import LONG, off_loop
from ..in_flight import Entry, InFlightLimit
from .outputs import Answered, PoolingRequestOutput, pooling_output
from .prompts import PoolingJob


class AsyncPoolingJob:
    """Call `output`, then `end` whatever happens. `abort` may be called at any time."""

    def __init__(self, request_id: str, client: AsyncClient, limit: InFlightLimit):
        self.request_id = request_id
        self._client = client
        self._entry = Entry(limit)
        self._request: AsyncPoolingRequest | None = None

    async def output(
        self, make: Callable[[], PoolingJob], threads: ThreadPoolExecutor, priority: int
    ) -> PoolingRequestOutput:
        """Run the job that `make` builds; `make` is slow, so it is called in a thread.

        Raises what AsyncPoolingRequest and `make` raise, and RequestFailed if the job was aborted.
        """
        job = await off_loop(threads, LONG, make)
        if not await self._entry.wait(1, priority):
            raise RequestFailed("the request was aborted")
        return pooling_output(await self._vector(job, priority), self.request_id)

    async def _vector(self, job: PoolingJob, priority: int) -> Answered:
        while True:
            request = self._request = self._client.pool(
                job.token_ids, job.params, priority=priority, cache_salt=job.cache_salt, adapter=job.adapter
            )
            if self._entry.is_aborted:
                request.abort()
            try:
                return Answered(job, await request, request.answer)
            except Overloaded as full:
                await self._entry.pause(full)

    def abort(self) -> None:
        """Has no effect on a job that has ended."""
        self._entry.abort()
        if self._request is not None:
            self._request.abort()

    def end(self) -> None:
        """The caller has its vector or no longer wants it."""
        self.abort()
        self._entry.end()
