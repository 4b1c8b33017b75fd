"""Authenticates the peers of our sockets, by a ZAP handler in each process that binds.

A peer on this host presents the run's secret (PLAIN), a peer on another host one of the listed keys (CURVE).

On a socket without a mechanism, libzmq falls back to an unauthenticated protocol of 2009 and delivers any bytes as
messages. With a mechanism and a ZAP domain, it delivers nothing until the handler has accepted the peer.
"""

import hmac
import threading
from pathlib import Path

import zmq

from ..errors import ConfigError
from .run_dir import SECRET_FILE

USER = b"paged-serve"
ZAP_DOMAIN = b"paged-serve"  # the same on every bound socket; libzmq refuses all peers where it differs
CURVE_DOMAIN = b"paged-serve-remote"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by the ZAP specification
_MAX_SECRET_BYTES = 255  # PLAIN carries the length in one byte


def read_secret(run_dir: str) -> str:
    """The run's secret. Raises ConfigError when it is missing, empty, too long, or open to other users."""
    path = Path(run_dir, SECRET_FILE)
    try:
        mode = path.stat().st_mode & 0o777
        secret = path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}); is a server running with this run directory?"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"{path} has mode {mode:03o}; other users can read it. Set it to 600")
    _check_secret(secret)
    return secret


def _check_secret(secret: str) -> None:
    if not 0 < len(secret.encode()) <= _MAX_SECRET_BYTES:
        raise ConfigError(f"the run's secret has {len(secret)} characters; it must have 1 to {_MAX_SECRET_BYTES}")


class Authenticator:
    """Accepts or refuses peers of all bound sockets of one context, at libzmq's request.

    Start it before the sockets bind: without a handler libzmq refuses all peers. Its thread sleeps except during
    handshakes.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", secret: str, curve_keys: frozenset[bytes] = frozenset()
    ):
        """`curve_keys`: the public keys (32 bytes each) of the clients accepted over TCP."""
        _check_secret(secret)
        self._curve_keys = curve_keys
        self.num_denied = 0
        self._context = context
        self._secret = secret.encode()
        socket = context.socket(zmq.REP)
        socket.linger = 0
        socket.bind(_ZAP_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, args=(socket,), name="authenticator", daemon=True)
        self._thread.start()

    def _serve(self, socket: "zmq.Socket[bytes]") -> None:
        with socket:
            try:
                while (request := socket.recv_multipart())[0]:
                    socket.send_multipart(self._answer(request))
            except zmq.ContextTerminated:
                pass

    def _answer(self, request: list[bytes]) -> list[bytes]:
        match request:  # version, request id, domain, address, routing id, mechanism, credentials
            case [_, _, domain, _, _, b"PLAIN", user, password]:
                allowed = domain == ZAP_DOMAIN and self._has_valid_secret(user, password)
            case [_, _, domain, _, _, b"CURVE", key]:
                allowed = domain == CURVE_DOMAIN and key in self._curve_keys
            case _:
                allowed = False
        self.num_denied += not allowed
        status = (b"200", b"OK", USER) if allowed else (b"400", b"denied", b"")
        return [b"1.0", request[1] if len(request) > 1 else b"", *status, b""]

    def _has_valid_secret(self, user: bytes, password: bytes) -> bool:
        return hmac.compare_digest(password, self._secret) and hmac.compare_digest(user, USER)

    def close(self) -> None:
        """End the thread. Connected peers stay connected; new ones are refused."""
        if self._thread.is_alive() and not self._context.closed:
            with self._context.socket(zmq.REQ) as socket:
                socket.connect(_ZAP_ENDPOINT)
                socket.send(b"")  # an empty first frame, which no ZAP request has
                self._thread.join()
