"""The sockets for clients: one in the run directory for this user, and TCP for clients with a listed key.

Peers choose their own names, so a client is identified by its port and its name together.
"""

import logging
from collections import deque
from collections.abc import Iterator

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig
from paged_serve.protocol.messages.engine_core import FromEngineCore, RequestRejected, ToEngineCore
from paged_serve.protocol.process.lifecycle import ChildProcess
from paged_serve.protocol.transport.authentication import Authenticator
from paged_serve.protocol.transport.channel import RouterChannel, Socket
from paged_serve.protocol.transport.curve import ServerKeys, server_keys
from paged_serve.protocol.transport.run_dir import ENGINE_SOCKET, endpoint

from .invalid_requests import rejection

log = logging.getLogger(__name__)
CLIENT_QUEUE_FRAMES = 1 << 16  # outputs are bounded by credits; refusals only by what a client sends before it reads
LOCAL, REMOTE = b"l", b"r"
_Port = RouterChannel[FromEngineCore, ToEngineCore]


class ClientSockets:
    """One or two RouterChannels, used as one. Created before any other socket binds: it owns the authenticator."""

    def __init__(self, child: ChildProcess):
        server = child.config.server
        keys = _keys(child) if server.client_address else None
        allowed = frozenset[bytes]() if keys is None else keys.allowed
        self._authenticator = Authenticator(child.context, child.secret, allowed)
        where = endpoint(child.run_dir, ENGINE_SOCKET)
        self._rejections: deque[tuple[bytes, RequestRejected]] = deque()
        self._ports = {LOCAL: self._bind(child, where, LOCAL, None)}
        if keys is not None and (remote := self._bind_remote(child, keys)) is not None:
            self._ports[REMOTE] = remote
        self._order = deque(self._ports)

    @property
    def sockets(self) -> list[Socket]:
        """The sockets to poll for reading."""
        return [port.socket for port in self._ports.values()]

    @property
    def remote_endpoint(self) -> str:
        """The bound TCP endpoint, or "" without one."""
        return self._ports[REMOTE].endpoint if REMOTE in self._ports else ""

    def readable_facts(self) -> dict[str, str]:
        return {"remote clients": self.remote_endpoint} if self.remote_endpoint else {}

    def receive(self) -> Iterator[tuple[bytes, ToEngineCore]]:
        """Received messages, from the ports alternately, also across calls; the caller stops when it has enough."""
        num_silent = 0
        while num_silent < len(self._ports):
            name = self._order[0]
            self._order.rotate(-1)
            if (item := self._ports[name].receive()) is None:
                num_silent += 1
            else:
                num_silent = 0
                yield name + item[0], item[1]

    def take_rejections(self) -> Iterator[tuple[bytes, RequestRejected]]:
        """The rejections of requests that did not decode."""
        while self._rejections:
            yield self._rejections.popleft()

    def send(self, client: bytes, message: FromEngineCore) -> bool:
        """Returns False if the client is gone or its queue is full."""
        return self._ports[client[:1]].send(client[1:], message)

    def close(self, linger_s: float) -> None:
        """Close the sockets; messages already queued have `linger_s` seconds to leave."""
        for socket in self.sockets:
            socket.close(linger=int(1000 * linger_s))

    def _bind_remote(self, child: ChildProcess, keys: ServerKeys) -> _Port | None:
        """None if the address of a core that replaces another is taken: it goes on without these clients."""
        try:
            return self._bind(child, child.config.server.client_address, REMOTE, keys)
        except ConfigError as error:
            if not child.epoch:
                raise
            log.error("no client on another host can connect to this engine core; the next one tries again: %s", error)
            return None

    def _bind(self, child: ChildProcess, endpoint: str, name: bytes, keys: ServerKeys | None) -> _Port:
        def invalid(peer: bytes, frame: bytes, error: Exception) -> None:
            if (rejected := rejection(frame, error)) is not None:
                self._rejections.append((name + peer, rejected))

        return _Port(
            child.context, endpoint, ToEngineCore, queue_frames=CLIENT_QUEUE_FRAMES, keys=keys, invalid=invalid
        )


def is_remote(client: bytes) -> bool:
    return client.startswith(REMOTE)


def _keys(child: ChildProcess) -> ServerKeys | None:
    """The keys of the port for other hosts, as their files are now. Raises ConfigError at the first start.

    A core that replaces another goes on without the clients whose keys are unusable, or without the port (None): the
    requests of all other clients are to be continued.
    """
    server, is_replacement = child.config.server, child.epoch > 0
    _check_address(server)
    try:
        return server_keys(server.client_server_key, server.client_keys, skips_unusable=is_replacement)
    except ConfigError as error:
        if not is_replacement:
            raise
        log.error("no client can connect to client_address=%s: %s", server.client_address, error)
        return None


def _check_address(server: ServerConfig) -> None:
    host, _, port = server.client_address.removeprefix("tcp://").rpartition(":")
    is_tcp = server.client_address.startswith("tcp://")
    if not is_tcp or not host or host == "*" or not (port == "*" or port.isdecimal()):
        raise ConfigError(
            f"--client-address is {server.client_address!r}; it is tcp://ADDRESS:PORT with an address of this host"
        )
    if not server.client_server_key or not server.client_keys:
        raise ConfigError(
            "--client-address needs --client-server-key FILE and --client-keys FOLDER; `paged-serve keygen` makes keys"
        )
