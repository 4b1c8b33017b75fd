"""The listening socket: what every connection inherits from it."""

import select
import socket
import time

import pytest

from paged_serve.frontend import listen
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig


@pytest.fixture
def connection(monkeypatch):
    """(the server's end, the peer's end), with an impatient server."""
    monkeypatch.setattr(listen, "TAKE_WITHIN_MS", 400)
    with (
        listen.open_http_socket(ServerConfig(port=0)) as listener,
        socket.create_connection(listener.getsockname()) as peer,
        listener.accept()[0] as accepted,
    ):
        accepted.setblocking(False)
        yield accepted, peer


def test_a_peer_that_never_reads_is_disconnected(connection):
    accepted, _ = connection
    poll = select.poll()
    poll.register(accepted, select.POLLOUT)
    while poll.poll(0):
        accepted.send(b"x" * 65536)
    poll.modify(accepted, 0)  # errors alone
    assert poll.poll(60_000)
    assert isinstance(OSError(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), ""), TimeoutError)


def test_a_peer_that_reads_late_is_kept(connection):
    accepted, peer = connection
    for _ in range(20):
        accepted.send(b"x" * 65536)
        time.sleep(0.05)
        peer.recv(65536)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_waiting_peers_are_probed(connection):
    accepted, _ = connection
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == listen.PROBE_IDLE_AFTER_S


def test_weights_without_their_keys_are_refused():
    with pytest.raises(ConfigError, match="2 API key weights for 1 keys"):
        listen.open_http_socket(ServerConfig(port=0, api_keys=("a",), api_key_weights=(1.0, 2.0)))
