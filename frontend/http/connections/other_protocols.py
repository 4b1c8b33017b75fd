"""Clients that begin with, or ask for, another protocol than HTTP/1.1: the former are told so, the latter are served.

Java's HttpClient and `curl --http2` ask for HTTP/2 with an Upgrade header, which a server may ignore. httptools would
not: it skips the body of such a request and stops.
"""

from collections.abc import Callable
from typing import Any

import httptools

from ..exchange.errors import Headers

_FIRST_BYTES = (
    (b"\x16\x03", "The connection began with TLS, which this server does not speak: use http://, or a proxy for TLS."),
    (b"PRI * HTTP/2.0\r\n", "The connection began with HTTP/2; this server speaks HTTP/1.1, without prior knowledge."),
    (b"PROXY ", "The connection began with the PROXY protocol: switch it off in the proxy."),
    (b"\r\n\r\n\x00\r\nQUIT\n", "The connection began with the PROXY protocol: switch it off in the proxy."),
)


def other_protocol(data: bytes) -> str:
    """What is wrong with a connection that begins with `data`, if that is another protocol; "" otherwise."""
    return next((fault for start, fault in _FIRST_BYTES if data.startswith(start)), "")


class RequestParser(httptools.HttpRequestParser):
    """httptools' parser of requests, which goes on after an Upgrade header.

    `begin_again`: called when it has stopped behind a head; returns the head to parse in place of that one, and the
    parser for it and for what follows; None when nothing is to be parsed any more.
    """

    def __init__(self, protocol: Any, begin_again: Callable[[], tuple[bytes, Any] | None]):
        super().__init__(protocol)
        self._begin_again = begin_again

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            if (again := self._begin_again()) is None:
                raise
            head, parser = again
            parser.feed_data(head)
            parser.feed_data(data[stop.args[0] :])


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The head that a client without a wish for another protocol would have sent."""
    kept = [b"%s: %s\r\n" % each for each in headers if each[0] not in (b"connection", b"upgrade", b"http2-settings")]
    return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version.encode(), b"".join(kept))
