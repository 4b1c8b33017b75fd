"""HTTP/1.1 for many concurrent streams, on asyncio's protocol and httptools' parser only.

A general client library needs several times the CPU per chunk, and an overloaded load generator measures itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

import httptools


class Reader(Protocol):
    """Receives one answer. The last call is either `end` or `fail`, exactly once."""

    def begin(self, status: int) -> None: ...

    def feed(self, data: bytes, now: float) -> None: ...

    def end(self, now: float) -> None: ...

    def fail(self, kind: str, detail: str, now: float) -> None: ...


class Connection(asyncio.Protocol):
    """Handles one exchange at a time; calls `on_free` when the next may begin."""

    def __init__(self, on_free: "Callable[[Connection], None]"):
        self._on_free = on_free
        self._reader: Reader | None = None
        self._transport: asyncio.Transport
        self.is_open = False

    def exchange(self, request: bytes, reader: Reader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._has_length = self._in_body = False
        self._transport.write(request)

    def abandon(self, kind: str, detail: str) -> None:
        """Fail the current exchange, if any, and close."""
        self._fail(kind, detail)
        self.is_open = False
        self._transport.abort()

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def connection_made(self, transport: Any) -> None:  # uvloop's transports are not subclasses of asyncio.Transport
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self.close()  # data without a request
            return
        self._now = time.perf_counter()  # before parsing, which must not count as the server's time
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abandon("no HTTP", str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._reader is not None and self._in_body and not self._has_length:
            reader, self._reader = self._reader, None
            reader.end(time.perf_counter())
        self._fail("connection lost", str(error) if error else "closed by the server")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._reader is not None:
            self._in_body = True
            self._reader.begin(status)

    def on_body(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data, self._now)

    def on_message_complete(self) -> None:
        if not self._in_body or self._reader is None:
            return  # 100 Continue
        reader, self._reader = self._reader, None
        if self._parser.should_keep_alive():
            self._on_free(self)
        else:
            self.close()
        reader.end(self._now)

    def _fail(self, kind: str, detail: str) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.fail(kind, detail, time.perf_counter())


class ConnectionPool:
    """Connections to one server. `take` prefers the free one that was used last, and opens one if none is free."""

    def __init__(self, url: str):
        self._parts: SplitResult = urlsplit(url)
        self._free: list[Connection] = []

    @property
    def host(self) -> str:
        """The value of the Host header."""
        return self._parts.netloc or "localhost"

    async def take(self) -> Connection:
        """An open connection. Raises OSError if the server cannot be reached."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        loop, parts = asyncio.get_running_loop(), self._parts
        if parts.scheme == "unix":
            _, connection = await loop.create_unix_connection(lambda: Connection(self._free.append), parts.path)
            return connection
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        _, connection = await loop.create_connection(
            lambda: Connection(self._free.append), parts.hostname or "", port, ssl=secure or None
        )
        return connection

    def close(self) -> None:
        for connection in self._free:
            if connection.is_open:
                connection.close()
