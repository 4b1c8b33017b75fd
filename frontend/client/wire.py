"""A client's socket and session together; shared by the asyncio and the synchronous client."""

import math
import os
import time
from typing import Any, Generic, Protocol, TypeVar

from paged_serve.protocol.errors import ConfigError, EngineDead, PagedServeError
from paged_serve.protocol.messages.engine_core import FromEngineCore, ToEngineCore
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.transport.authentication import read_secret
from paged_serve.protocol.transport.channel import Context, new_context
from paged_serve.protocol.transport.curve import ClientKeys, client_keys
from paged_serve.protocol.transport.run_dir import ENGINE_SOCKET, endpoint, find_run_dirs, has_ended

from .session.session import ClientSession

TCP = "tcp://"
TICK_S = 0.25
BACKLOG_TICK_S = 0.02  # while something could not be sent
AWAY_S = 300.0  # how long a restart of an engine elsewhere may take; a server on this host says when it has ended
UTILITY_TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0
LINGER_S = 0.1  # for the aborts of `close` to leave


class Channel(Protocol):
    def send(self, message: ToEngineCore) -> bool: ...
    def takes_messages(self) -> bool: ...
    def close(self, linger_s: float = 0.0) -> None: ...


C = TypeVar("C", bound=Channel)


def find_run_dir() -> str:
    """The run directory of this user's newest running server. Raises EngineDead if there is none."""
    if found := find_run_dirs():
        return found[0]
    raise EngineDead("no server of this user runs on this machine; start one with `paged-serve serve`")


def _text(value: Any, name: str) -> str:
    """An address or a path as text. Raises ConfigError."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise ConfigError(f"{name} is {value!r:.100}; it must be a string or a path")
    return text


def _check_seconds(value: Any, name: str) -> None:
    """Raises ConfigError. An infinite number is no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:  # also true for NaN
        raise ConfigError(f"{name} is {value!r:.100}; it must be a number of seconds, at least 0")


def _address(server: str, keys: tuple[str, str] | None) -> tuple[str, str | ClientKeys]:
    """Endpoint and credentials. Raises ConfigError if they cannot be used, EngineDead for a server that is gone."""
    if server.startswith(TCP):
        if keys is None:
            raise ConfigError(f"{server} asks for keys: connect(..., key='me.key_secret', server_key='server.key')")
        return server, client_keys(*keys)
    if "://" in server:
        raise ConfigError(
            f"{server} is not the address of an engine; give the run directory, which its banner names, or the "
            "server's --client-address, tcp://ADDRESS:PORT"
        )
    try:
        return endpoint(server, ENGINE_SOCKET), read_secret(server)
    except ConfigError as error:
        raise EngineDead(str(error)) from None


class Wire(Generic[C]):
    """One connection to RUN/engine.sock, or to a server's --client-address."""

    def __init__(self, channel: C, session: ClientSession, server: str, context: Context | None):
        self.channel = channel
        self.session = session
        self._run_dir = "" if server.startswith(TCP) else server
        self._context = context  # the context to end; None if it is the caller's
        self._closed = False
        self._next_look = 0.0

    @classmethod
    def connect(
        cls,
        kind: type[C],
        server: str | os.PathLike[str] | None,
        keys: tuple[str, str] | None,
        role: str,
        index: int,
        timeout_s: float,
        away_s: float | None,
        context: Context | None,
    ) -> "Wire[C]":
        """Open the socket; the session sends Hello when it is flushed. Raises ConfigError for an argument that cannot
        be used, and EngineDead when there is no server."""
        server = find_run_dir() if server in (None, "") else _text(server, "server")
        away_s = (AWAY_S if server.startswith(TCP) else math.inf) if away_s is None else away_s
        _check_seconds(timeout_s, "timeout_s")
        _check_seconds(away_s, "away_s")
        named = None if keys is None else (_text(keys[0], "key"), _text(keys[1], "server_key"))
        where, secret = _address(server, named)
        own = new_context() if context is None else None
        make: Any = kind
        channel = make(context or own, where, secret, identity(role, index, 0), FromEngineCore)
        session = ClientSession(handshake_hello(role, index, 0), time.monotonic(), timeout_s, away_s)
        return cls(channel, session, server, own)

    def flush(self) -> None:
        if not self._closed:
            self.session.flush(self.channel.send)

    def tick(self) -> float:
        """Run the session's timers; returns the seconds until the next call."""
        session, now = self.session, time.monotonic()
        if not self._closed and not self.channel.takes_messages():
            session.unplugged(now)
        session.tick(now)
        if self._may_look() and has_ended(self._run_dir):
            session.fail(EngineDead(f"the server of {self._run_dir} has ended"))
        self.flush()
        return BACKLOG_TICK_S if session.backlog else TICK_S

    def _may_look(self) -> bool:
        """Every second while the engine is away: looking is a connection that the supervisor must take."""
        now = time.monotonic()
        if not self._run_dir or self.session.ready or self.session.error is not None or now < self._next_look:
            return False
        self._next_look = now + LOOK_EVERY_S
        return True

    def let_go(self) -> None:
        """Detach in a forked child: the socket is the parent's, and a message from here would disturb its answers."""
        self._closed = True
        self.session.fail(
            EngineDead(f"this client belongs to process {os.getppid()}, which forked this one; connect another here")
        )

    def close(self, error: PagedServeError | None = None) -> None:
        """Abort the running requests, so that the engine does not wait for the lease to end. Safe to call twice.

        `error`: what they end with; None: EngineDead.
        """
        if self._closed:
            return
        self.session.abort_all()
        self.flush()
        self._closed = True
        self.session.fail(error or EngineDead("the client is closed"))
        self.channel.close(LINGER_S)
        if self._context is not None:
            self._context.term()
