"""Authorizes requests: by their API key, and by the web page that they come from."""

import hashlib
import hmac
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from paged_serve.protocol.messages.config import ServerConfig

from .browsers import BrowserPolicy
from .errors import HttpError


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a request. `name` replaces the API key in other processes and their dumps."""

    name: str
    weight: float = 1.0
    key_digest: bytes = field(default=b"", repr=False)  # SHA-256; it stays in this process


NO_KEY = Tenant("")  # when the server has no keys


def tenants_of(server: ServerConfig, secret: str = "") -> list[Tenant]:
    """One tenant for each API key."""
    weights = itertools.chain(server.api_key_weights, itertools.repeat(1.0))
    return [
        Tenant(_name(secret, key), weight, hashlib.sha256(key.encode()).digest())
        for key, weight in zip(server.api_keys, weights, strict=False)
    ]


class Guard:
    """Checks a request by its headers only, so that no spelling of a path evades the check."""

    def __init__(self, server: ServerConfig, secret: str = ""):
        """`secret`: the run's secret, shared by all frontends; it keeps the names of tenants from being guessed."""
        self._tenants = {tenant.key_digest: tenant for tenant in tenants_of(server, secret)}
        self.browsers = BrowserPolicy(server)

    def check(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant of a request. Raises HttpError 401 or 403."""
        self.browsers.check(headers)
        return self._check_keys(headers) if self._tenants else NO_KEY

    def _check_keys(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant by API key. A client may send two keys; the first valid one counts."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = [key.strip(" \t")] if scheme.lower() == "bearer" else []
        given += [headers["x-api-key"].strip(" \t")] if "x-api-key" in headers else []
        matches = [tenant for key in given for tenant in self._matches(key)]
        if not matches:
            raise HttpError(
                401,
                "A valid API key is required: Authorization: Bearer KEY, or X-Api-Key: KEY.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return matches[0]

    def _matches(self, key: str) -> list[Tenant]:
        """The tenants with this key. All keys are compared in constant time, so that timing reveals nothing."""
        given = hashlib.sha256(key.encode("latin-1")).digest()
        return [tenant for digest, tenant in self._tenants.items() if hmac.compare_digest(given, digest)]


def _name(secret: str, key: str) -> str:
    """The name of a tenant. Guessed keys cannot be checked against it without the run's secret."""
    return hmac.new(secret.encode(), b"tenant of paged-serve " + key.encode(), hashlib.sha256).hexdigest()[:32]
