"""The client without asyncio.

One thread at a time reads the socket: a thread that waits for a delta or, between deltas, the client's background
thread, which wakes twice a second, and more often while all clients wait for this one. A program may pause between two
tokens for any time: the background thread renews the engine's 10 s lease, receives outputs (which are merged, so
nothing piles up) and handles a restart of the engine.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.engine_core import FromEngineCore, ToEngineCore, Utility, Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.transport.channel import FRAMES_PER_ITERATION, Context, DealerChannel

from .pooling import PoolingRequest
from .request_terms import RequestTerms, instance_of
from .session.session import ClientSession
from .streams.deltas import SequenceDelta
from .streams.request_streams import RequestStreams
from .sync_request import Request
from .wire import TICK_S, UTILITY_TIMEOUT_S, Wire

KEEP_EVERY_S, KEEP_AWAITED_EVERY_S = 0.5, 0.002
FRAMES_PER_KEEP = 1024
_SyncWire = Wire[DealerChannel[ToEngineCore, FromEngineCore]]


class Client:
    """One link to the engine core. Made by `connect`; safe to use from any thread, all wait for the same socket."""

    def __init__(self, wire: _SyncWire):
        self._wire = wire
        self._session: ClientSession = wire.session
        self._lock = threading.Lock()
        self._next_tick = 0.0
        self._ended = threading.Event()
        self._finalizer = weakref.finalize(self, _finish, wire, self._ended)
        in_forked_child(self, Client._let_go)
        threading.Thread(target=_keep, args=(weakref.ref(self), self._ended), name="client-lease", daemon=True).start()

    @classmethod
    def connect(
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
    ) -> "Client":
        """Connect, and wait until the engine core accepts requests.

        `server`: None for this user's newest server on this host, its run directory, or the tcp:// address of a server
        elsewhere; the latter needs files with the client's secret `key` and the server's public `server_key`.
        `away_s`: how long a restart of the engine may take; None: as long as its server runs, 300 s elsewhere. Raises
        EngineDead when no engine answers for `timeout_s`, and ConfigError for an argument that cannot be used.
        """
        keys = (key, server_key) if key or server_key else None
        client = cls(Wire.connect(DealerChannel, server, keys, role, index, timeout_s, away_s, context))
        try:
            while not client.ready:
                client.wait()
                if client._session.error is not None:
                    raise client._session.error
        except BaseException:
            client.close()
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
    def limits(self) -> Welcome:
        assert self._session.limits is not None  # connect has waited for it
        return self._session.limits

    @property
    def stats(self) -> SchedulerStats | None:
        """The engine's statistics, as of the last read."""
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
        on_output: Callable[[RequestStreams], None] | None = None,
    ) -> Request:
        """Start a request. Prefixes are shared only between equal `cache_salt`s; a lower `priority` goes first.

        Tenants share the engine by `weight`. A request without a token after `timeout_s` (0: no limit) ends with
        RequestExpired. `adapter`: of `frontend.adapters.folders.read_adapter`, for a server with --max-loras. The
        reading thread calls `on_output` when the request has a delta or has ended; it must not block.
        """
        if on_output is not None and not callable(on_output):  # else whichever thread reads next would fail
            raise InvalidRequest(f"on_output is {on_output!r:.100}; it must be a function", "on_output")
        terms = RequestTerms(priority, cache_salt, tenant, weight, timeout_s, adapter)
        with self._lock:
            streams = self._session.submit(prompt_token_ids, sampling_params, terms, on_output, time.monotonic())
            self._wire.flush()
        return Request(self, streams)

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
    ) -> PoolingRequest:
        """Start a request for a vector, with the arguments of `submit`; `result` waits for the vector.

        `limits.tasks` lists the tasks that the model supports, `limits.embedding_size` is the size of an embedding.
        Raises InvalidRequest if `pooling_params` has another type.
        """
        instance_of(PoolingParams, pooling_params, "pooling_params")
        terms, now = RequestTerms(priority, cache_salt, tenant, weight, timeout_s, adapter), time.monotonic()
        with self._lock:
            streams = self._session.submit(prompt_token_ids, SamplingParams(), terms, None, now, pooling_params)
            self._wire.flush()
        return PoolingRequest(Request(self, streams))

    def wait(self, timeout_s: float = TICK_S) -> None:
        """Receive outputs from the engine, waiting at most `timeout_s`."""
        with self._lock:
            self._pump(timeout_s, FRAMES_PER_ITERATION)

    def take(self, streams: RequestStreams) -> SequenceDelta | None:
        with self._lock:
            return streams.take()

    def abort(self, streams: RequestStreams, index: int | None, finish_reason: FinishReason) -> None:
        with self._lock:
            self._session.abort(streams, index, finish_reason)
            self._wire.flush()

    def abandon(self, streams: RequestStreams) -> None:
        """Called from a destructor, which may run anywhere, so only recorded here; the next read aborts the request."""
        if not streams.done:
            self._session.abandoned.append(streams)

    def utility(self, utility: Utility) -> bytes:
        """The JSON answer. Raises PagedServeError with the engine's reason, or EngineDead if it does not answer."""
        with self._lock:
            pending = self._session.call(utility)
            self._wire.flush()
        deadline = time.monotonic() + UTILITY_TIMEOUT_S
        while not pending.done and time.monotonic() < deadline:
            self.wait()
        return self._session.end_call(pending)

    def close(self) -> None:
        """Abort all running requests and disconnect. Safe to call twice."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def keep(self) -> float:
        """One turn of the background thread, skipped if another thread reads; returns seconds until the next turn."""
        if not self._lock.acquire(blocking=False):
            return KEEP_EVERY_S
        try:
            self._pump(0.0, FRAMES_PER_KEEP)
            return KEEP_AWAITED_EVERY_S if self._session.is_awaited else KEEP_EVERY_S
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        """Detach the client in a forked child."""
        self._finalizer.detach()
        self._lock, self._ended = threading.Lock(), threading.Event()  # a thread that is not here may hold the others
        self._ended.set()
        self._wire.let_go()

    def _pump(self, timeout_s: float, max_frames: int) -> None:
        if self._ended.is_set():
            return
        session, channel = self._session, self._wire.channel
        wait_s = min(timeout_s, max(0.0, self._next_tick - time.monotonic()))
        message = channel.receive(wait_s)
        frames = 0
        while message is not None:
            session.receive(message, time.monotonic())
            frames += 1
            message = channel.receive(0.0) if frames < max_frames else None
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + self._wire.tick()
        elif session.outbox:
            self._wire.flush()


def _keep(reference: "weakref.ref[Client]", ended: threading.Event) -> None:
    wait_s = KEEP_EVERY_S
    while not ended.wait(wait_s):
        client = reference()
        if client is None:
            return
        wait_s = client.keep()
        del client  # a reference kept while asleep would keep a dropped client


def _finish(wire: _SyncWire, ended: threading.Event) -> None:
    ended.set()
    wire.close()
