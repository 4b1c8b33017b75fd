"""Decides which web pages may use the server: by its host names and the allowed origins, with CORS for the latter."""

import re
from collections.abc import Mapping, Sequence

from paged_serve.protocol.messages.config import ServerConfig

from ...listen import is_loopback
from .errors import Headers, HttpError

MAX_AGE_S = 600  # how long a browser caches the answer to a preflight
MAX_SHOWN_CHARS = 200
EXPOSED = b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry"  # what pages may read
_ALWAYS_ALLOWED = "Content-Type"  # every request with a body has this header
_DEFAULT_PORTS = (("http://", ":80"), ("https://", ":443"))  # which browsers leave out
_WORDS = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(, ?[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


class BrowserPolicy:
    """Checks the headers Host and Origin, which a page cannot set itself."""

    def __init__(self, server: ServerConfig):
        self._origins = frozenset(map(_as_browsers_write, server.allowed_origins))
        self._any_origin = "*" in self._origins
        self._methods, self._headers = server.allowed_methods, server.allowed_headers
        self._credentials = server.allow_credentials
        # DNS rebinding: a page whose name resolves to 127.0.0.1 could otherwise read a local server without keys.
        local_only = not server.api_keys and not server.uds and is_loopback(server.host)
        self._any_host = "*" in server.allowed_hosts or not (local_only or server.allowed_hosts)
        names = [name.lower().removeprefix("[").removesuffix("]") for name in server.allowed_hosts]
        self._hosts = frozenset(names)
        self._domains = tuple(name.removeprefix("*") for name in names if name.startswith("*."))

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises HttpError 403 for a host that is not this server's, and for a page that may not use it."""
        host, origin = headers.get("host", "").lower(), headers.get("origin", "")
        if host and not self._answers_for(_without_port(host)):
            raise HttpError(
                403,
                f"This server does not answer for the host {host[:MAX_SHOWN_CHARS]!r}, only for localhost and "
                "--allowed-hosts; with an --api-key and without --allowed-hosts it answers for any host.",
            )
        is_own = host and origin.lower().partition("://")[2] == host
        if origin and not is_own and not self._lets_in(origin):
            raise HttpError(
                403,
                f"Requests from web pages of other origins are refused: {origin[:MAX_SHOWN_CHARS]!r} is not in "
                "--allowed-origins.",
            )

    def answer_headers(self, origin: str) -> Headers:
        """The headers of every answer, errors included; `origin` is the request's, "" for none."""
        if not self._origins:
            return []
        vary = [] if self._any_origin else [(b"vary", b"Origin")]
        if not self._any_origin and not self._lets_in(origin):
            return vary
        allowed = b"*" if self._any_origin else origin.encode("latin-1")
        headers = [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED), *vary]
        return [*headers, (b"access-control-allow-credentials", b"true")] if self._credentials else headers

    def preflight(self, method: str, headers: Mapping[str, str]) -> Headers | None:
        """The headers of the answer to a CORS preflight; None when the request is not a preflight."""
        wanted = headers.get("access-control-request-method", "")
        if method != "OPTIONS" or not wanted or not self._lets_in(headers.get("origin", "")):
            return None
        asked = headers.get("access-control-request-headers", "")
        headers_of_page = self._headers if "*" in self._headers else (_ALWAYS_ALLOWED, *self._headers)
        permission = [
            (b"access-control-allow-methods", _allowed(self._methods, wanted)),
            (b"access-control-allow-headers", _allowed(headers_of_page, asked)),
            (b"access-control-max-age", str(MAX_AGE_S).encode()),
        ]
        if headers.get("access-control-request-private-network") == "true":  # from a page of a public address
            permission.append((b"access-control-allow-private-network", b"true"))
        return [(name, value) for name, value in permission if value]

    def _answers_for(self, name: str) -> bool:
        return self._any_host or is_loopback(name) or name in self._hosts or name.endswith(self._domains)

    def _lets_in(self, origin: str) -> bool:
        return bool(origin) and (self._any_origin or origin.lower() in self._origins)


def _allowed(words: Sequence[str], asked: str) -> bytes:
    """The allowed words; for "*" those asked for: browsers refuse * for Authorization and with credentials."""
    if "*" in words:
        return asked.encode("latin-1") if _WORDS.fullmatch(asked) else b""
    return ", ".join(words).encode("latin-1")


def _as_browsers_write(origin: str) -> str:
    origin = origin.lower()
    for scheme, port in _DEFAULT_PORTS:
        if origin.startswith(scheme):
            origin = origin.removesuffix(port)
    return origin


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).removeprefix("[").removesuffix("]")
