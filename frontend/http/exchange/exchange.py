"""One HTTP request as the routes see it."""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paged_serve.protocol.errors import PagedServeError

from ...buffer_budget import DEFAULT_MAX_BYTES, LARGEST_SHARE, BufferBudget, Lease
from ...client.request_terms import MAX_TIMEOUT_S
from .auth import NO_KEY, Tenant
from .body import MAX_BODY_BYTES, read_body
from .errors import NO_STORE, Headers, HttpError, http_error
from .memory_costs import DECODED_PER_BYTE
from .wire_format import OPENAI, WireFormat

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
JSON = [(b"content-type", b"application/json")]
EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # proxies must not buffer a stream
]


BODY_TAKEN = "paged_serve.body_taken"  # in a scope: called when the connection no longer holds the body
SLICE_BYTES = 64 << 10  # of a body to send; the next slice waits until the peer has read this one


def _nothing() -> None:
    pass


def _own_lease() -> Lease:
    return BufferBudget(DEFAULT_MAX_BYTES).lease()


@dataclass(slots=True)
class Exchange:
    """Reads the body once and answers once."""

    scope: Scope
    receive: Receive
    send_event: Send
    headers: dict[str, str] = field(init=False, default_factory=dict)
    request_id: str = field(init=False)
    path: str = field(init=False)
    arrival: float = field(default_factory=time.monotonic)
    tenant: Tenant = NO_KEY
    wire_format: WireFormat = OPENAI
    lease: Lease = field(default_factory=_own_lease)  # for the memory of the request
    status: int = 0  # 0: none has been sent
    page_headers: Headers = field(default_factory=list)  # of the answer, for the web page of the request
    is_last: bool = False  # of its connection
    _body_taken: Callable[[], None] = field(init=False)
    _peeked: bytes | None = None

    def __post_init__(self) -> None:
        self._body_taken = self.scope.pop(BODY_TAKEN, _nothing)  # otherwise the scope would keep the connection alive
        # A repeated header becomes a list (RFC 9110, 5.3), which is not a valid host, key or number.
        for raw_name, raw_value in self.scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.path = str(self.scope["path"])
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

    @property
    def started(self) -> bool:
        return self.status != 0

    @property
    def caller(self) -> bytes:
        """The tenant's name, under which its answers are stored, so that no other tenant finds them."""
        return self.tenant.name.encode()

    def timeout_s(self) -> float | None:
        """The request's time limit for the first token, from a header. Raises HttpError 400."""
        given = self.headers.get("x-request-timeout")
        if given is None:
            return None
        with contextlib.suppress(ValueError):
            if 0 < (seconds := float(given)) <= MAX_TIMEOUT_S:
                return seconds
        raise HttpError(
            400,
            f"X-Request-Timeout is {given[:60]!r}; it must be seconds, above 0 and at most {MAX_TIMEOUT_S:g}",
            "timeout",
        )

    async def peek(self) -> bytes:
        """The body, without consuming it. Raises like `body`."""
        self._peeked = await self.body()
        return self._peeked

    async def body(self) -> bytes:
        """The body. Raises HttpError 413 when it is too long and 415 when it is compressed; Overloaded (429) without
        memory to decode it."""
        if self._peeked is not None:
            body, self._peeked = self._peeked, None
            return body
        if (coding := self.headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
            raise HttpError(
                415,
                f"The body is compressed (Content-Encoding: {coding[:60]}); send it uncompressed, without that header.",
                headers=[(b"accept-encoding", b"identity")],
            )
        limit = min(MAX_BODY_BYTES, int(self.lease.budget.max_bytes * LARGEST_SHARE) // DECODED_PER_BYTE)
        body = await read_body(self.receive, self.headers.get("content-length"), limit)
        self.lease.resize(DECODED_PER_BYTE * len(body))
        self._body_taken()
        return body

    async def send(self, status: int, body: bytes, headers: Headers) -> None:
        length = [(b"content-length", str(len(body)).encode())] if status != 204 else []
        await self._start(status, [*headers, *length])
        await self._send_slices(body, more_body=False)

    async def send_head(self, status: int, headers: Headers) -> None:
        """Answer HEAD for a body of unknown length."""
        await self._start(status, headers)
        await self.send_event({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_json(self, answer: Any) -> None:
        await self.send(200, msgspec.json.encode(answer), JSON)

    async def send_error(self, error: HttpError) -> None:
        await self.send(error.status, self.wire_format.error_body(error, self.request_id), [*JSON, *error.headers])

    async def send_events(self, frames: AsyncIterator[bytes], ping_every_s: float = 0.0) -> None:
        """Send server-sent events. The status waits for the first frame, so that a refusal has its own; 204 if none.

        A stream that is silent for `ping_every_s` gets a ping, which clients skip, so that proxies keep it open.
        """
        one_at_a_time = asyncio.Lock()
        last = time.monotonic()

        async def send(frame: bytes) -> None:
            nonlocal last
            async with one_at_a_time:
                if not self.started:
                    await self._start(200, EVENTS)
                await self._send_slices(frame, more_body=True)
            last = time.monotonic()

        async def ping() -> None:
            while True:
                await asyncio.sleep(max(0.0, last + ping_every_s - time.monotonic()))
                if time.monotonic() >= last + ping_every_s:
                    await send(self.wire_format.ping)

        pinger = asyncio.create_task(ping()) if ping_every_s else None
        try:
            async for frame in frames:
                await send(frame)
        except (HttpError, PagedServeError) as error:
            if not self.started:
                raise
            await send(self.wire_format.error_event(http_error(error, self.request_id), self.request_id))
            error.__traceback__ = None  # as in Application
        finally:
            if pinger is not None:
                pinger.cancel()
        if self.started:
            await self.send_event({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self.send(204, b"", [])

    @contextlib.asynccontextmanager
    async def until_disconnect(self) -> AsyncIterator[None]:
        """Context that is cancelled as soon as no client waits for the answer. Enter it after reading the body."""
        task = asyncio.current_task()
        assert task is not None
        left = False

        async def watch() -> None:
            nonlocal left
            while (await self.receive())["type"] != "http.disconnect":
                pass
            left = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not left:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def _send_slices(self, body: bytes, *, more_body: bool) -> None:
        """Send the body in slices; each waits until the peer has read the one before."""
        for start in range(0, max(1, len(body)), SLICE_BYTES):
            end = start + SLICE_BYTES
            part = body[start:end] if len(body) > SLICE_BYTES else body
            await self.send_event(
                {"type": "http.response.body", "body": part, "more_body": more_body or end < len(body)}
            )

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        request_id = [(name, self.request_id.encode()) for name in self.wire_format.request_id_headers]
        caching = [] if any(name == b"cache-control" for name, _ in headers) else [NO_STORE]
        ending = [(b"connection", b"close")] if self.is_last else []
        named = [*headers, *caching, *ending, *self.page_headers, *request_id]
        await self.send_event({"type": "http.response.start", "status": status, "headers": named})
