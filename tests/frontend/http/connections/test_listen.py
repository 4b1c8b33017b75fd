"""The listening socket: its address, its refusals, and the options that connections inherit."""

import errno
import select
import socket
import time

import pytest

from paged_serve.frontend import listen
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig


@pytest.fixture
def connection(monkeypatch):
    """(the server's end, the peer's end), with a short timeout of the server."""
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
    poll.modify(accepted, 0)  # errors only
    assert poll.poll(60_000)
    assert isinstance(OSError(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), ""), TimeoutError)


def test_a_peer_that_reads_late_is_kept(connection):
    accepted, peer = connection
    began, longest_s = time.monotonic(), 0.0
    while time.monotonic() < began + 1.0 and longest_s < 0.3:
        last = time.monotonic()
        accepted.send(b"x" * 65536)
        time.sleep(0.05)
        peer.recv(65536)
        longest_s = max(longest_s, time.monotonic() - last)
    # After a longer pause of this process, the peer was not late but absent.
    assert longest_s >= 0.3 or accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_waiting_peers_are_probed(connection):
    accepted, _ = connection
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == listen.PROBE_IDLE_AFTER_S


def test_weights_without_their_keys_are_refused():
    with pytest.raises(ConfigError, match="--api-key-weight and --api-key are given 2 and 1 times"):
        listen.open_http_socket(ServerConfig(port=0, api_keys=("a",), api_key_weights=(1.0, 2.0)))


def test_a_port_in_use_is_refused_by_number_with_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use.*--port"):
            listen.open_http_socket(ServerConfig(port=port))


def test_a_kernel_without_ipv6_refuses_its_addresses_by_name(monkeypatch):
    def without_ipv6(*arguments):
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with pytest.raises(ConfigError, match=r"host ::1 is not an address of this machine.*--host"):
        listen.open_http_socket(ServerConfig(host="::1", port=0))


def test_a_public_host_needs_a_key():
    with pytest.raises(ConfigError, match=r"host 0\.0\.0\.0 is reachable.*--api-key"):
        listen.open_http_socket(ServerConfig(host="0.0.0.0", port=0))
    listen.open_http_socket(ServerConfig(host="0.0.0.0", port=0, api_keys=("key",))).close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10"])
def test_a_loopback_host_needs_no_key(host):
    listen.open_http_socket(ServerConfig(host=host, port=0)).close()


def test_a_server_that_ends_leaves_the_unix_socket_of_another_on_its_path(tmp_path):
    server = ServerConfig(uds=str(tmp_path / "http.sock"))
    first = listen.open_http_socket(server)
    (tmp_path / "http.sock").unlink()
    second = listen.open_http_socket(server)
    listen.close_http_socket(first, server)
    assert (tmp_path / "http.sock").exists()
    listen.close_http_socket(second, server)
    assert not (tmp_path / "http.sock").exists()


def test_a_server_whose_unix_socket_accepts_nothing_at_the_moment_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(listen, "BACKLOG", 0)
    server = ServerConfig(uds=str(tmp_path / "http.sock"))
    with listen.open_http_socket(server), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(server.uds)
        with pytest.raises(ConfigError, match="a server is listening there"):
            listen.open_http_socket(server)


def test_a_dead_servers_unix_socket_is_replaced_and_a_living_ones_is_not(tmp_path):
    server = ServerConfig(uds=str(tmp_path / "http.sock"))
    listen.open_http_socket(server).close()  # like a killed server: the file stays
    living = listen.open_http_socket(server)
    with pytest.raises(ConfigError, match=r"a server is listening there.*--uds"):
        listen.open_http_socket(server)
    living.close()


def test_a_file_that_is_not_a_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("text")
    with pytest.raises(ConfigError, match="cannot listen on unix socket"):
        listen.open_http_socket(ServerConfig(uds=str(path)))
    assert path.read_text() == "text"
