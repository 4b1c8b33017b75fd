"""Who may speak to the server: API keys over the whole application, and no web page of somebody else's."""

import hashlib
import hmac
from collections.abc import Mapping

from paged_serve.protocol.config import ServerConfig

from ..listen import is_loopback
from .errors import HttpError


class Guard:
    """Checks a request by its headers alone, so that no spelling of a path passes it."""

    def __init__(self, server: ServerConfig):
        self._digests = [hashlib.sha256(key.encode()).digest() for key in server.api_keys]
        # A page that has its own name resolve to 127.0.0.1 would otherwise read a key-less local server.
        self._local_only = not server.api_keys and not server.uds and is_loopback(server.host)

    def check(self, headers: Mapping[str, str]) -> bytes:
        """Who asks: a digest of the key, empty where none is needed. Raises HttpError 401 or 403."""
        host = headers.get("host", "").lower()
        if self._local_only and host and not is_loopback(_without_port(host)):
            raise HttpError(
                403, "This server answers to localhost only. Start it with an --api-key to use other names."
            )
        origin = headers.get("origin", "")
        if origin and origin.lower().partition("://")[2] != host:
            raise HttpError(403, "Requests from web pages of other origins are refused.")
        return self._check_key(headers.get("authorization", "")) if self._digests else b""

    def _check_key(self, authorization: str) -> bytes:
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode("latin-1")).digest()
        # All are compared, each in constant time: the time taken tells nothing about any key.
        matches = sum(hmac.compare_digest(given, digest) for digest in self._digests)
        if scheme.lower() != "bearer" or not matches:
            raise HttpError(
                401,
                "A valid API key is needed: Authorization: Bearer KEY.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return given


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).removeprefix("[").removesuffix("]")
