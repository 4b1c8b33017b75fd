"""Exchanges bytes between the ranks of one host on the CPU, over a unix stream socket between each pair of ranks.

The sockets are in a private directory: nothing listens on the network, and only processes of this user can connect.
An exchange of 4 KiB takes a tenth of the time that gloo's loopback connections take: it uses no threads, makes two
system calls, and polls briefly before it sleeps.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

RETRY_S = 0.005  # between two attempts to connect to a rank that does not listen yet
POLLS_BEFORE_SLEEP = 200  # about 100 us: longer than a peer on another core lags behind in a decode step
BUFFER_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class RankLost(RuntimeError):
    """A peer has ended or has been silent for too long; the group can no longer be used."""


class RankLinks:
    """This rank's links to all others, created by `join`, which every rank must call with the same `place`."""

    def __init__(self, rank: int, peers: dict[int, socket.socket]):
        self._rank = rank
        self._size = len(peers) + 1
        self._peers = peers
        # Room for two messages: a rank may be one exchange ahead of its peer.
        buffers = [peer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for peer in peers.values()]
        self._small_bytes = min(buffers, default=0) // 8

    @classmethod
    def join(cls, rank: int, size: int, place: str, timeout_s: float) -> "RankLinks":
        """Connect to the other ranks. Raises RankLost after `timeout_s`.

        The sockets are named `place` and a number, in a directory that only this user may enter. Each rank listens for
        the ranks above it and connects to those below.
        """
        folder, name = os.path.split(place)
        with contextlib.ExitStack() as at_end:
            directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            at_end.callback(os.close, directory)
            paths = [f"/proc/self/fd/{directory}/{name}-{other}" for other in range(size)]  # short for any `place`
            listener = at_end.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(paths[rank])
            at_end.callback(os.unlink, paths[rank])
            listener.listen(size)
            deadline = time.monotonic() + timeout_s
            peers = {other: _connect(paths[other], rank, deadline) for other in range(rank)}
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            while len(peers) < size - 1:
                peers |= [_accept(listener)]
        for peer in peers.values():
            set_timeouts(peer, timeout_s)
        return cls(rank, peers)

    def exchange(self, parts: Sequence[memoryview]) -> None:
        """Fill parts[other] with the part of rank `other`; all parts have the same length in bytes on all ranks."""
        if parts[self._rank].nbytes <= self._small_bytes:
            for peer in self._peers.values():
                self._send(peer, parts[self._rank])
            for other, peer in self._peers.items():
                self._receive(peer, parts[other])
        else:
            self._exchange_in_turns(parts)

    def _exchange_in_turns(self, parts: Sequence[memoryview]) -> None:
        """Exchange in rounds: each rank has at most one partner, and the lower one sends first, to avoid deadlock."""
        for turn in range(self._size):
            other = (turn - self._rank) % self._size
            if other == self._rank:
                continue
            peer = self._peers[other]
            steps: list[tuple[Callable[[socket.socket, memoryview], None], memoryview]]
            steps = [(self._send, parts[self._rank]), (self._receive, parts[other])]
            for step, part in steps if self._rank < other else reversed(steps):
                step(peer, part)

    def send(self, part: memoryview) -> None:
        """Send `part` to every other rank, which calls `receive`."""
        for peer in self._peers.values():
            self._send(peer, part)

    def receive(self, source: int, part: memoryview) -> None:
        self._receive(self._peers[source], part)

    def _send(self, peer: socket.socket, part: memoryview) -> None:
        try:
            peer.sendall(part)
        except OSError as error:
            raise RankLost(f"rank {self._rank} cannot send to a peer any more: {error.strerror}") from error

    def _receive(self, peer: socket.socket, part: memoryview) -> None:
        polls_left = POLLS_BEFORE_SLEEP
        while part:
            try:
                count = peer.recv_into(part, 0, socket.MSG_DONTWAIT if polls_left else 0)
            except BlockingIOError as error:
                if not polls_left:
                    raise RankLost(f"rank {self._rank} has waited too long for a peer that is silent") from error
                polls_left -= 1
                continue
            except OSError as error:
                raise RankLost(f"a link of rank {self._rank} broke: {error.strerror}") from error
            if not count:
                raise RankLost(f"a peer of rank {self._rank} has ended")
            part = part[count:]
            polls_left = POLLS_BEFORE_SLEEP

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers = {}


def _connect(path: str, rank: int, deadline: float) -> socket.socket:
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(path)
            peer.sendall(bytes([rank]))
            return peer
        except (FileNotFoundError, ConnectionRefusedError) as error:
            peer.close()
            if time.monotonic() > deadline:
                raise RankLost(f"rank {rank} found no peer at {path}") from error
        time.sleep(RETRY_S)


def _accept(listener: socket.socket) -> tuple[int, socket.socket]:
    """Accept a link: (the peer's rank, the link). Peers of other users are refused."""
    try:
        peer, _ = listener.accept()
        _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.getuid():
            raise RankLost(f"a process of user {uid} connected to the ranks of user {os.getuid()}")
        return peer.recv(1)[0], peer
    except TimeoutError as error:
        raise RankLost("not all ranks have connected") from error


def set_timeouts(peer: socket.socket, timeout_s: float) -> None:
    """Set the kernel's timeouts; Python's would cost a poll before each call."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    limit = struct.pack("@qq", int(timeout_s), int(timeout_s % 1 * 1e6))
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, direction, limit)
