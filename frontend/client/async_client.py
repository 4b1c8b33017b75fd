"""The client library: tokens in, tokens out, over ZeroMQ to a server of the same user. Needs only pyzmq and msgspec.

    async with await AsyncClient.connect() as client:
        async for delta in client.submit([1, 2, 3], SamplingParams(max_tokens=64)):
            print(delta.token_ids)

Leaving a loop early, cancelling its task, or dropping a request aborts it. A restart of the engine only delays output.
Iterating over a request raises its errors: InvalidRequest, Overloaded, EngineDead. `Client` is the same without
asyncio.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from paged_serve.protocol.errors import EngineDead, Overloaded, PagedServeError
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.engine_core import FromEngineCore, ToEngineCore, Utility, Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.transport.async_channel import AsyncDealerChannel
from paged_serve.protocol.transport.channel import Context

from .async_pooling import AsyncPoolingRequest
from .async_request import AsyncRequest
from .request_terms import RequestTerms, instance_of
from .session.session import ClientSession
from .streams.request_streams import RequestStreams
from .wire import TICK_S, UTILITY_TIMEOUT_S, Wire

TOO_SLOW = "The answer was read more slowly than it was generated, and the server has no memory left; read faster."
RETRY_AFTER_S = 1.0


def _nothing() -> None:
    pass


def _wake(streams: RequestStreams) -> None:
    waiter = streams.waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class AsyncClient:
    """One link to the engine core, for asyncio or uvloop. Made by `connect`."""

    def __init__(self, wire: Wire[AsyncDealerChannel[ToEngineCore, FromEngineCore]]):
        self._wire = wire
        self._session: ClientSession = wire.session
        self._changed = asyncio.Event()
        self.on_outputs: Callable[[], object] = _nothing  # called after outputs have arrived
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._tick())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        in_forked_child(self, lambda client: client._wire.let_go())

    @classmethod
    async def connect(
        cls,
        server: str | os.PathLike[str] | None = None,
        *,
        key: str = "",
        server_key: str = "",
        role: str = "client",
        index: int = 0,
        timeout_s: float = 60.0,
        away_s: float | None = None,
        context: Context | None = None,
    ) -> "AsyncClient":
        """Connect, and wait until the engine core accepts requests.

        `server`: None for this user's newest server on this host, its run directory, or the tcp:// address of a server
        elsewhere; the latter needs files with the client's secret `key` and the server's public `server_key`.
        `away_s`: how long a restart of the engine may take; None: as long as its server runs, 300 s elsewhere. Raises
        EngineDead when no engine answers for `timeout_s`, and ConfigError for an argument that cannot be used.
        """
        keys = (key, server_key) if key or server_key else None
        client = cls(Wire.connect(AsyncDealerChannel, server, keys, role, index, timeout_s, away_s, context))
        try:
            while not client.ready:
                if client._session.error is not None:
                    raise client._session.error
                client._changed.clear()
                await client._changed.wait()
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def ready(self) -> bool:
        """False while the engine is away; requests are still accepted, and wait."""
        return self._session.ready

    @property
    def computes(self) -> bool:
        """False while the engine waits for new workers."""
        return self._session.computes

    @property
    def silence_s(self) -> float:
        """Seconds since the engine's last message; it sends one at least every 250 ms."""
        return self._session.silence(time.monotonic())

    @property
    def failure(self) -> PagedServeError | None:
        """The error that ended this client, if any."""
        return self._session.error

    @property
    def limits(self) -> Welcome:
        assert self._session.limits is not None  # connect has waited for it
        return self._session.limits

    @property
    def stats(self) -> SchedulerStats | None:
        """The engine's statistics, at most about 100 ms old while it computes."""
        return self._session.stats

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        timeout_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> AsyncRequest:
        """Start a request. Prefixes are shared only between equal `cache_salt`s; a lower `priority` goes first.

        Tenants share the engine by `weight`. A request without a token after `timeout_s` (0: no limit) ends with
        RequestExpired. `adapter`: of `frontend.adapters.folders.read_adapter`, for a server with --max-loras.
        """
        terms = RequestTerms(priority, cache_salt, tenant, weight, timeout_s, adapter)
        streams = self._session.submit(prompt_token_ids, sampling_params, terms, _wake, time.monotonic())
        self._wire.flush()
        return AsyncRequest(self, streams)

    def pool(
        self,
        prompt_token_ids: Sequence[int],
        pooling_params: PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        timeout_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> AsyncPoolingRequest:
        """Start a request for a vector, with the arguments of `submit`; await the result for the vector.

        `limits.tasks` lists the tasks that the model supports, `limits.embedding_size` is the size of an embedding.
        Raises InvalidRequest if `pooling_params` has another type.
        """
        instance_of(PoolingParams, pooling_params, "pooling_params")
        terms, now = RequestTerms(priority, cache_salt, tenant, weight, timeout_s, adapter), time.monotonic()
        streams = self._session.submit(prompt_token_ids, SamplingParams(), terms, _wake, now, pooling_params)
        self._wire.flush()
        return AsyncPoolingRequest(AsyncRequest(self, streams))

    def abort(self, streams: RequestStreams, index: int | None, finish_reason: FinishReason) -> None:
        self._session.abort(streams, index, finish_reason)
        self._wire.flush()

    def abandon(self, streams: RequestStreams) -> None:
        """Called from a destructor, so the request is only recorded; the next frame or tick aborts it."""
        if not streams.done:
            self._session.abandoned.append(streams)

    async def utility(self, utility: Utility) -> bytes:
        """The JSON answer. Raises PagedServeError with the engine's reason, or EngineDead if it does not answer."""
        done = asyncio.Event()
        pending = self._session.call(utility, done.set)
        self._wire.flush()
        if pending.error is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), UTILITY_TIMEOUT_S)
        return self._session.end_call(pending)

    @property
    def num_bytes(self) -> int:
        """Bytes of outputs that their readers have not yet taken."""
        return self._session.table.undelivered.num_bytes

    def shed(self, num_bytes: int) -> None:
        """End requests of slow readers, the largest first, until `num_bytes` bytes are free."""
        self._session.shed(num_bytes, Overloaded(TOO_SLOW, RETRY_AFTER_S))
        self._wire.flush()

    async def close(self, error: PagedServeError | None = None) -> None:
        """Abort all running requests, with `error` (None: EngineDead), and disconnect. Safe to call twice."""
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        unfinished = [task for task in self._tasks if not task.done()]  # none in a loop that is closed
        await asyncio.gather(*unfinished, return_exceptions=True)
        self._wire.close(error)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read(self) -> None:
        session, channel = self._session, self._wire.channel
        while True:
            message = await channel.receive()
            was_ready = session.ready
            session.receive(message, time.monotonic())
            self.on_outputs()
            if session.outbox:
                self._wire.flush()
            if session.ready != was_ready or session.error is not None:
                self._changed.set()

    async def _tick(self) -> None:
        while self._session.error is None:
            await asyncio.sleep(min(self._wire.tick(), TICK_S))
        self._changed.set()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Fail the client when one of its tasks ends: a client that no longer reads must not appear alive."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._session.fail(EngineDead(f"the client failed: {type(error).__name__}: {error}"))
        self._changed.set()
