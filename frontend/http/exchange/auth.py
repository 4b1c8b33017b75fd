"""Which requests are let in: API keys over the whole application, and no web page of another origin."""

import hashlib
import hmac
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from paged_serve.protocol.messages.config import ServerConfig

from ...listen import is_loopback
from .errors import HttpError


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a request is. `name` stands for the key: it goes to other processes and into their dumps."""

    name: str
    weight: float = 1.0


NO_KEY = Tenant("")  # where the server has no keys


class Guard:
    """Checks a request by its headers alone, so that no spelling of a path passes it."""

    def __init__(self, server: ServerConfig, secret: str = ""):
        """`secret`: the run's, which all frontends share; it keeps the names of tenants from being guessed at."""
        weights = itertools.chain(server.api_key_weights, itertools.repeat(1.0))
        self._tenants = {
            hashlib.sha256(key.encode()).digest(): Tenant(_name(secret, key), weight)
            for key, weight in zip(server.api_keys, weights, strict=False)
        }
        # A page that has its own name resolve to 127.0.0.1 would otherwise read a key-less local server.
        self._local_only = not server.api_keys and not server.uds and is_loopback(server.host)

    def check(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant whose key this is. Raises HttpError 401 or 403."""
        host = headers.get("host", "").lower()
        if self._local_only and host and not is_loopback(_without_port(host)):
            raise HttpError(
                403, "This server answers to localhost only. Start it with an --api-key to use other names."
            )
        origin = headers.get("origin", "")
        if origin and (not host or origin.lower().partition("://")[2] != host):
            raise HttpError(403, "Requests from web pages of other origins are refused.")
        return self._check_key(headers.get("authorization", "")) if self._tenants else NO_KEY

    def _check_key(self, authorization: str) -> Tenant:
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip(" \t").encode("latin-1")).digest()
        # All are compared, each in constant time: the time taken reveals nothing about any key.
        matches = [tenant for digest, tenant in self._tenants.items() if hmac.compare_digest(given, digest)]
        if scheme.lower() != "bearer" or not matches:
            raise HttpError(
                401,
                "A valid API key is needed: Authorization: Bearer KEY.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return matches[0]


def _name(secret: str, key: str) -> str:
    """Read in a dump it does not even let keys be tried out: that takes the run's secret."""
    return hmac.new(secret.encode(), b"tenant of paged-serve " + key.encode(), hashlib.sha256).hexdigest()[:32]


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).removeprefix("[").removesuffix("]")
