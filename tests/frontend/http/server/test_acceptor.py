"""New connections are accepted soon by a busy server, and shared between idle ones."""

import asyncio
import socket
import time

import pytest
import uvloop

from paged_serve.frontend.http.server.acceptor import PAUSE_S, Acceptor

BACKLOG = 200


def accepted(num_acceptors: int, num_clients: int, *, busy_s: float) -> tuple[list[int], int]:
    """The connections of each acceptor of one socket, and the turns until all were made; each turn takes `busy_s`."""

    async def talk() -> tuple[list[int], int]:
        counts, turns = [0] * num_acceptors, 0

        class Connection(asyncio.Protocol):
            def __init__(self, index: int):
                counts[index] += 1

        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
            address = listener.getsockname()
            listener.setblocking(False)
            acceptors = [Acceptor(listener.dup(), lambda i=i: Connection(i)) for i in range(num_acceptors)]
        clients = [socket.create_connection(address) for _ in range(num_clients)]
        while sum(counts) < num_clients:
            turns += 1
            time.sleep(busy_s)  # the work of other connections
            await asyncio.sleep(0)
        for acceptor in acceptors:
            acceptor.close()
            acceptor.close()
            await acceptor.wait_closed()
        for client in clients:
            client.close()
        return counts, turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(talk())


def test_a_busy_server_accepts_waiting_connections_together():
    counts, turns = accepted(1, 100, busy_s=0.05)
    assert counts == [100]
    assert turns < 12


def test_idle_servers_share_a_burst():
    counts, _ = accepted(2, 60, busy_s=0.0)
    assert min(counts) > 20


def test_a_server_without_a_free_file_pauses_and_accepts_again(monkeypatch):
    real, failures = socket.socket.accept, iter([OSError(24, "Too many open files"), OSError(103, "aborted")])

    def accept(self):
        if (failure := next(failures, None)) is not None:
            raise failure
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    began = time.monotonic()
    counts, _ = accepted(1, 3, busy_s=0.001)
    assert counts == [3]
    assert time.monotonic() - began > 0.9 * PAUSE_S, "it tried in each turn"


def test_a_server_that_ends_refuses_connections_although_other_processes_have_the_socket():
    async def talk() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            ending, other = (Acceptor(listener.dup(), asyncio.Protocol) for _ in range(2))
            with socket.create_connection(listener.getsockname()):
                ending.refuse()
                await ending.wait_closed()
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(listener.getsockname())
                await asyncio.sleep(0)
            other.refuse()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())
