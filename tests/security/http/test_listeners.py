"""A running server listens on one TCP address, on the loopback interface; its other sockets are its own files."""

import os
import socket
import stat

import psutil
import pytest

from ...end_to_end.server_process import ServerProcess

LOOPBACK = {"127.0.0.1", "::1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ServerProcess(tmp_path_factory.mktemp("t"))
    try:
        server.wait_ready()
        server.complete()
        yield server
    finally:
        server.close()


def listening(server: ServerProcess) -> set[tuple[str, int]]:
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    found = [link for process in family for link in process.net_connections("inet")]
    udp = [link for link in found if link.type is socket.SOCK_DGRAM]
    assert not udp
    return {tuple(link.laddr) for link in found if link.status == psutil.CONN_LISTEN}


def test_there_is_one_tcp_listener_and_it_is_the_http_port_on_loopback(server):
    assert listening(server) == {("127.0.0.1", server.port)}


def test_every_socket_file_is_in_a_directory_of_its_user_alone(server):
    [run_dir] = server.temporary.glob("paged-serve-*/run-*")
    for folder in (run_dir, run_dir.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()
    assert list(run_dir.glob("*.sock"))


def test_no_socket_has_an_abstract_name(server):
    """Those have no file, hence no permissions: any user of the machine may connect."""
    with open("/proc/net/unix") as file:
        names = [line.split()[-1] for line in file if len(line.split()) == 8]
    assert not [name for name in names if name.startswith("@") and "paged" in name]
