"""Typed channels over ZeroMQ: one tagged union each way, bounded queues, authenticated peers.

A frame that does not decode is counted and dropped, never delivered. `send` never blocks; False means that nothing
was sent, because the peer is gone or its queue is full. The settings, and why:

* PLAIN (CURVE over TCP) with a ZAP domain: a bare libzmq socket delivers raw garbage as messages.
* ROUTER_MANDATORY: without it a ROUTER drops silently, for unknown peers and for full queues.
* No ROUTER_HANDOVER: with it a peer could take over the identity and the messages of another.
* IMMEDIATE on the connecting side: nothing is queued for an absent peer.
* Bounded queues: memory does not grow with a reader that has stopped.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from ..errors import ConfigError, ProtocolError
from ..messages.message import MAX_FRAME_BYTES, Message, plain
from .authentication import CURVE_DOMAIN, USER, ZAP_DOMAIN
from .curve import ClientKeys, ServerKeys
from .run_dir import MAX_PATH_BYTES

log = logging.getLogger(__name__)

Sends = TypeVar("Sends", bound=Message)
Receives = TypeVar("Receives", bound=Message)
Context = zmq.Context["zmq.Socket[bytes]"]
Socket = zmq.Socket[bytes]

FRAMES_PER_ITERATION = 64  # messages that a channel receives before the rest of its loop runs
SECONDS_PER_ITERATION = 0.002  # the same limit in time

Invalid = Callable[[bytes, bytes, Exception], None]  # peer, frame, what is wrong with the frame


def new_context() -> "Context":
    """A context for one process; never carried across a fork."""
    return zmq.Context(io_threads=1)


class _Codec(Generic[Sends, Receives]):
    """Encodes and decodes messages, with the size limit and the count of refused frames."""

    def __init__(self, receives: Any, max_frame_bytes: int):
        self.num_invalid = 0
        self._encode = msgspec.msgpack.Encoder(enc_hook=plain).encode
        self._decode: Callable[[bytes], Receives] = msgspec.msgpack.Decoder(receives).decode
        self._max_frame_bytes = max_frame_bytes

    def encode(self, message: Sends) -> bytes:
        frame = self._encode(message)
        if len(frame) > self._max_frame_bytes:
            raise ProtocolError(
                f"{type(message).__name__} takes {len(frame)} bytes; this link carries {self._max_frame_bytes}"
            )
        return frame

    def decode(self, frames: list[bytes] | None, invalid: Invalid | None = None) -> Receives | None:
        """The message, or None for an invalid one, passed to `invalid`. `frames`: None if their number was wrong."""
        try:
            if frames is not None:
                return self._decode(frames[-1])
            reason = "more than one payload frame"
        except Exception as error:  # msgspec lets UnicodeDecodeError and RecursionError through
            reason = f"{type(error).__name__}: {error}"
            if invalid is not None and frames is not None:
                invalid(frames[0], frames[-1], error)
        self.num_invalid += 1
        if self.num_invalid & (self.num_invalid - 1) == 0:  # powers of two: a flood does not fill the log
            log.warning("dropped an invalid message total=%d reason=%s", self.num_invalid, reason[:256])
        return None


def _new_socket(context: "Context", kind: int, max_frame_bytes: int, queue_frames: int) -> "Socket":
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = queue_frames
    socket.maxmsgsize = max_frame_bytes
    socket.handshake_ivl = 2000
    socket.zap_domain = ZAP_DOMAIN
    return socket


def _probe_peers(socket: "Socket") -> None:
    """Detect a lost host: TCP probes a silent peer after 10 s, then every 5 s, and closes after three failures."""
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 10
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 5, 3


def _connect(
    context: "Context", endpoint: str, secret: "str | ClientKeys", name: bytes, max_frame_bytes: int, queue_frames: int
) -> "Socket":
    socket = _new_socket(context, zmq.DEALER, max_frame_bytes, queue_frames)
    socket.routing_id = name
    if isinstance(secret, ClientKeys):
        socket.curve_publickey, socket.curve_secretkey = secret.public, secret.secret
        socket.curve_serverkey = secret.server
        _probe_peers(socket)
    else:
        socket.plain_username = USER
        socket.plain_password = secret.encode()
    socket.immediate = True
    socket.reconnect_ivl = 10
    socket.reconnect_ivl_max = 200
    socket.connect(endpoint)
    return socket


def _bind(socket: "Socket", endpoint: str) -> None:
    """Bind; only this user can open a socket file. On failure the socket is closed and ConfigError raised."""
    umask = os.umask(0o077)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(f"cannot bind {endpoint}: {error.strerror}") from error
    finally:
        os.umask(umask)


def take(socket: "Socket", expected: int) -> list[bytes] | None:
    """The next multipart message if it has `expected` frames, else None. Raises zmq.Again when there is none."""
    frames = [socket.recv(zmq.NOBLOCK)]
    while socket.getsockopt(zmq.RCVMORE):  # the attribute of this name costs three times as much
        frame = socket.recv(zmq.NOBLOCK)
        if len(frames) <= expected:  # surplus frames are dropped as they arrive
            frames.append(frame)
    return frames if len(frames) == expected else None


def _take_valid(
    socket: "Socket", codec: _Codec[Sends, Receives], expected: int, invalid: Invalid | None = None
) -> tuple[bytes, Receives] | None:
    """The next valid message and its first frame; None if there is none, or after many invalid ones."""
    ends = math.inf
    for _ in range(FRAMES_PER_ITERATION):
        if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # costs half as much as an exception
            return None
        try:
            frames = take(socket, expected)
        except zmq.Again:
            return None
        message = codec.decode(frames, invalid)
        if message is not None and frames is not None:
            return frames[0], message
        now = time.monotonic()
        ends = min(ends, now + SECONDS_PER_ITERATION)
        if now >= ends:
            return None
    return None


class RouterChannel(Generic[Sends, Receives]):
    """The bound end of a link, for a poll loop: poll `socket` for reading, then `receive` until None."""

    def __init__(
        self,
        context: "Context",
        endpoint: str,
        receives: Any,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        queue_frames: int = 1024,
        keys: ServerKeys | None = None,
        invalid: Invalid | None = None,
    ):
        """`receives` is the union of messages that peers send; `queue_frames` bounds each peer's queue, each way.

        `invalid` is called with each frame that does not decode, which is dropped all the same.
        `keys` is for a TCP endpoint, where CURVE authenticates peers; the context's Authenticator must know their keys.
        """
        path = endpoint.removeprefix("ipc://")
        if keys is None and len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(f"socket path {path} has more than {MAX_PATH_BYTES} bytes; choose a shorter directory")
        self._codec = _Codec[Sends, Receives](receives, max_frame_bytes)
        self._invalid = invalid
        self.socket = _new_socket(context, zmq.ROUTER, max_frame_bytes, queue_frames)
        self.socket.router_mandatory = True
        self.socket.router_handover = False
        if keys is None:
            self.socket.plain_server = True
        else:
            self.socket.curve_server, self.socket.curve_secretkey = True, keys.secret
            self.socket.zap_domain = CURVE_DOMAIN
            _probe_peers(self.socket)
        _bind(self.socket, endpoint)
        bound: Any = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        self.endpoint: str = bound.decode().rstrip("\0")  # with the port that was chosen for `*`

    @property
    def num_invalid(self) -> int:
        return self._codec.num_invalid

    def send(self, peer: bytes, message: Sends) -> bool:
        """Returns False if the peer is gone or its queue is full; nothing was sent then. ProtocolError: too large."""
        try:
            self.socket.send_multipart((peer, self._codec.encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def receive(self) -> tuple[bytes, Receives] | None:
        """The next message and its sender; None when there is none (or after many invalid ones: poll again)."""
        return _take_valid(self.socket, self._codec, expected=2, invalid=self._invalid)

    def close(self) -> None:
        self.socket.close(linger=0)


class Dealer(Generic[Sends, Receives]):
    """Base of the connecting ends."""

    def __init__(
        self,
        context: "Context",
        endpoint: str,
        secret: str | ClientKeys,
        identity: bytes,
        receives: Any,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        queue_frames: int = 1024,
    ):
        """`receives` is the union of messages that the bound end sends; `identity` comes from `identity()`.

        `secret` is the run's secret, or the keys for a TCP endpoint.
        """
        self.codec = _Codec[Sends, Receives](receives, max_frame_bytes)
        self.socket = _connect(context, endpoint, secret, identity, max_frame_bytes, queue_frames)

    @property
    def num_invalid(self) -> int:
        return self.codec.num_invalid

    def send(self, message: Sends) -> bool:
        """Returns False if not connected or the queue is full; nothing was sent then. ProtocolError: too large."""
        try:
            self.socket.send(self.codec.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def takes_messages(self) -> bool:
        """Whether `send` would succeed: the other end is connected and the queue is not full."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)


class DealerChannel(Dealer[Sends, Receives]):
    """A connecting end for a poll loop or for plain blocking code."""

    def wait_connected(self, timeout_s: float | None) -> bool:
        """Whether `send` can succeed, after waiting at most `timeout_s` (None: without limit) for the connection."""
        return bool(self.socket.poll(None if timeout_s is None else math.ceil(1000 * timeout_s), zmq.POLLOUT))

    def receive(self, timeout_s: float | None = 0.0) -> Receives | None:
        """The next message, waiting at most `timeout_s` (None: without limit); None if none arrived."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (taken := _take_valid(self.socket, self.codec, expected=1)) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self.socket.poll(None if left_s is None else math.ceil(1000 * left_s))
        return taken[1]

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket. Queued messages have `linger_s` to leave, and the end of the context waits for them.

        When the peer has stopped reading, libzmq may still lose the last few kilobytes: the receiver of a message that
        must arrive acknowledges it.
        """
        self.socket.close(linger=int(1000 * linger_s))
