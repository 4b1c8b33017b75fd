"""Passes requests with an Idempotency-Key to the frontend that owns the key, so that several give one answer.

The owner is a function of the key alone, and the id of a stream contains it. So a client may connect to any frontend.
A request is passed on whole, as HTTP over the owner's socket in the run directory; its answer is passed back as it is
made. While the owner is being replaced the request waits and is sent again, which the key makes safe. When the owner
ends during an answer, the connection to the client breaks as well, and the client resumes after its last event.
"""

import asyncio
import enum
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httptools

from paged_serve.protocol.transport.run_dir import FRONTEND_SOCKET

from ..exchange.answer_ids import owner_of_answer
from ..exchange.errors import HttpError
from ..exchange.exchange import Exchange, Receive, Scope, Send
from .keys import owner_of_key

PASSED_ON = "paged_serve.passed_on"  # in a scope: passed on to this frontend, the owner of the key
KEYED_PATHS = frozenset(  # of the routes that take a key; their table is loaded long after the first connection
    (
        *("/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/messages", "/v1/responses"),
        *("/inference/v1/generate", "/invocations", "/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    )
)
STREAMS = "/v1/streams/"
STORED_RESPONSE = re.compile("/v1/responses/([^/]+)(/[a-z_]+)?")
REPLACED_WITHIN_S = 30.0  # how long a request waits for a new owner
CONNECT_EVERY_S = 0.05
MAX_TIMES_SENT = 2  # a request that crashes its frontend must not crash one after another
READ_BYTES = 64 << 10
HOP_BY_HOP = frozenset(  # of this connection, not of the request or its answer (RFC 9110, 7.6.1)
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect")
)
OURS = HOP_BY_HOP | {b"content-length", b"x-request-id"}  # request headers that are replaced
NOT_AGAIN = HOP_BY_HOP | {b"date"}  # answer headers that the connection to the client adds itself


RETRY_SOON = [(b"retry-after", b"1")]


class Outcome(enum.Enum):
    """The outcome of one attempt to have the owner answer."""

    ANSWERED = enum.auto()
    AWAY = enum.auto()  # the owner is being replaced; nothing was sent
    BROKE_OFF = enum.auto()


class OtherFrontends:
    """The other frontends, as seen by frontend `index` of `count`.

    `check_draining` raises Overloaded while the server drains: a frontend that is away then does not return.
    """

    def __init__(self, run_dir: str, index: int, count: int, check_draining: Callable[[], None] = lambda: None):
        self._run_dir = run_dir
        self._index = index
        self._count = count
        self._check_draining = check_draining

    def owner_of(self, exchange: Exchange) -> int | None:
        """The frontend that must answer this exchange; None: this one."""
        if self._count == 1 or PASSED_ON in exchange.scope:
            return None
        owner = None
        if exchange.scope["method"] == "POST" and exchange.path in KEYED_PATHS:
            owner = owner_of_key(exchange.headers.get("idempotency-key", ""), self._count)
        elif exchange.scope["method"] in ("GET", "HEAD", "DELETE") and exchange.path.startswith(STREAMS):
            owner = owner_of_answer(exchange.path.removeprefix(STREAMS), self._count)
        elif (named := STORED_RESPONSE.fullmatch(exchange.path)) is not None:
            owner = owner_of_answer(named[1], self._count)
        return None if owner == self._index else owner

    async def pass_on(self, exchange: Exchange, owner: int) -> None:
        """Have the owner answer. Raises HttpError 503 when it does not return in time, or its answer breaks off.

        Raises Overloaded when it is away for good.
        """
        request = _request(exchange, await exchange.body())
        exchange.lease.resize(len(request))  # the body is not decoded here
        path = f"{self._run_dir}/{FRONTEND_SOCKET.format(owner)}"
        deadline = time.monotonic() + REPLACED_WITHIN_S
        async with exchange.until_disconnect():
            times_sent = 0
            while (outcome := await _send(exchange, path, request)) is not Outcome.ANSWERED:
                times_sent += outcome is Outcome.BROKE_OFF
                if exchange.started or times_sent == MAX_TIMES_SENT or time.monotonic() > deadline:
                    raise HttpError(503, "The frontend that stored this answer has ended.", headers=RETRY_SOON)
                if outcome is Outcome.AWAY:
                    self._check_draining()
                await asyncio.sleep(CONNECT_EVERY_S)


class PassedOn:
    """The application on a frontend's internal socket, whose requests are not passed on again."""

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]]):
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PASSED_ON] = True
        await self._application(scope, receive, send)


class _Answer:
    """httptools' callbacks: collects an answer."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_whole = False
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True

    def take_body(self) -> bytes:
        """The body received since the last call."""
        body = b"".join(self._body)
        self._body.clear()
        return body


def _request(exchange: Exchange, body: bytes) -> bytes:
    headers = [(name, value) for name, value in exchange.scope["headers"] if name not in OURS]
    headers += [
        (b"x-request-id", exchange.request_id.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    query = exchange.scope.get("query_string", b"")
    target = exchange.path.encode() + (b"?" + query if query else b"")
    lines = [
        b"%s %s HTTP/1.1" % (exchange.scope["method"].encode(), target),
        *(b": ".join(header) for header in headers),
    ]
    return b"\r\n".join([*lines, b"", body])


async def _send(exchange: Exchange, path: str, request: bytes) -> Outcome:
    """Send the request to the frontend that listens at `path`, and pass its answer to the client as it arrives."""
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=READ_BYTES)
    except OSError:
        return Outcome.AWAY
    try:
        writer.write(request)
        return Outcome.ANSWERED if await _pass_back(exchange, reader) else Outcome.BROKE_OFF
    except OSError:
        return Outcome.BROKE_OFF
    finally:
        writer.transport.abort()


async def _pass_back(exchange: Exchange, reader: asyncio.StreamReader) -> bool:
    """Pass the answer back; False when it broke off."""
    answer = _Answer()
    parser: Any = httptools.HttpResponseParser(answer)
    while not answer.is_whole and (data := await reader.read(READ_BYTES)):
        parser.feed_data(data)
        answer.is_whole |= answer.has_head and exchange.scope["method"] == "HEAD"  # it has a length but no body
        if answer.has_head and not exchange.started:
            exchange.status = parser.get_status_code()
            headers = [header for header in answer.headers if header[0] not in NOT_AGAIN]
            start = {"type": "http.response.start", "status": exchange.status, "headers": headers}
            await exchange.send_event(start)
        if body := answer.take_body():
            await exchange.send_event({"type": "http.response.body", "body": body, "more_body": True})
    if answer.is_whole:
        await exchange.send_event({"type": "http.response.body", "body": b"", "more_body": False})
    return answer.is_whole
