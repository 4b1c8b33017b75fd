"""The number of connections of a frontend, which are closed if there are too many, and the memory of one."""

import asyncio
import resource
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing

import psutil
import pytest
import uvicorn

from paged_serve.frontend.http.connections.connection_limit import MAX_REFUSED, ConnectionLimit
from paged_serve.frontend.http.connections.http_protocol import MAX_UNSENT_BYTES
from paged_serve.frontend.http.server.uvicorn_server import uvicorn_config
from paged_serve.frontend.open_files import OPEN_FILES, max_connections_for
from paged_serve.protocol.messages.config import ServerConfig

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Application:
    """Answers on demand; counts the waiting requests."""

    def __init__(self):
        self.answers = asyncio.Event()
        self.num_waiting = 0

    async def __call__(self, scope, receive, send):
        self.num_waiting += 1
        await self.answers.wait()
        self.num_waiting -= 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(application, connection_limit):
    """Yields (address, the server)."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn_config(application, connection_limit=connection_limit))
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield listener.getsockname(), server
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def run(body, application_type=Application, max_connections=2, connection_limit=None):
    async def main():
        application, held = application_type(), connection_limit or ConnectionLimit(max_connections)
        async with serving(application, held) as (address, server), AsyncExitStack() as stack:

            async def connect():
                reader, writer = await asyncio.open_connection(*address)
                stack.callback(writer.close)
                return reader, writer

            async with asyncio.timeout(120):
                await body(application, server, connect)

    asyncio.run(main())


async def ask(connection):
    connection[1].write(GET)
    return await connection[0].readuntil(b"\r\n\r\nok")


def test_the_connection_idle_for_longest_is_closed():
    async def body(application, server, connect):
        application.answers.set()
        first, second = await connect(), await connect()
        await ask(second)
        await ask(first)  # the second one has now been idle for longer
        third = await connect()
        assert await second[0].read() == b""
        assert (await ask(first)).startswith(b"HTTP/1.1 200")
        assert (await ask(third)).startswith(b"HTTP/1.1 200")
        assert len(server.server_state.connections) == 2

    run(body)


def test_a_connection_accepted_while_the_server_ends_is_answered_by_its_successor():
    connection_limit = ConnectionLimit()

    async def body(application, server, connect):
        connection_limit.is_closed = True
        reader, writer = await connect()
        writer.write(GET)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert application.num_waiting == connection_limit.num_held == 0

    run(body, connection_limit=connection_limit)


def test_a_busy_connection_is_never_closed_for_another():
    async def body(application, server, connect):
        answered, asking = await connect(), await connect()
        answered[1].write(GET)
        await until(lambda: application.num_waiting == 1)
        asking[1].write(GET[:-2])
        connections = server.server_state.connections
        await until(lambda: sum(getattr(c, "url", b"") == b"/" for c in connections) == 2)
        late = await connect()
        refusal = await late[0].read()
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"All 2 connections of this server are busy" in refusal
        asking[1].write(GET[-2:])
        await until(lambda: application.num_waiting == 2)
        application.answers.set()
        for connection in (answered, asking):
            assert (await connection[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        again = await connect()
        assert (await ask(again)).startswith(b"HTTP/1.1 200")

    run(body)


def test_the_number_of_open_refusals_is_bounded():
    async def body(application, server, connect):
        busy = await connect()
        busy[1].write(GET)
        await until(lambda: application.num_waiting == 1)
        others = [await connect() for _ in range(MAX_REFUSED + 20)]
        answers = [await asyncio.wait_for(_all_of(reader), 60) for reader, _ in others]
        assert sum(answer.startswith(b"HTTP/1.1 503") for answer in answers) >= MAX_REFUSED
        assert len(server.server_state.connections) <= 1 + MAX_REFUSED
        connection_limit = server.config.http_protocol_class.keywords["connection_limit"]
        await until(lambda: connection_limit.num_refused == 0)
        assert connection_limit.num_held == 1
        application.answers.set()
        await busy[0].readuntil(b"ok")
        busy[1].close()
        await until(lambda: connection_limit.num_held == 0)

    run(body, max_connections=1)


async def _all_of(reader):
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_an_idle_connection_keeps_nothing_of_its_last_request():
    async def body(application, server, connect):
        application.answers.set()
        for _ in range(2):
            connection = await connect()
            await ask(connection)
        for kept in server.server_state.connections:
            assert kept.cycle is kept.scope is kept.headers is None

    run(body)


class Endless:
    """Writes as fast as it can, and counts the bytes."""

    def __init__(self):
        self.num_bytes = 0

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})
            self.num_bytes += 4096
            await asyncio.sleep(0)


def test_a_client_that_does_not_read_holds_a_bounded_number_of_bytes():
    async def body(application, server, connect):
        connection = await connect()
        connection[1].transport.pause_reading()
        connection[1].write(GET)
        await until(lambda: any(c.flow.write_paused for c in server.server_state.connections))
        (held,) = server.server_state.connections
        assert 0 < held.transport.get_write_buffer_size() <= MAX_UNSENT_BYTES + 8192
        written = application.num_bytes
        for _ in range(100):
            await asyncio.sleep(0)
        assert application.num_bytes <= written + 8192 or not held.flow.write_paused

    run(body, Endless)


def test_the_default_limit_leaves_open_files_for_everything_else():
    assert max_connections_for(1024) == 768
    assert max_connections_for(64) == 1


def test_more_connections_than_open_files_are_refused_at_the_start(monkeypatch):
    from paged_serve.frontend import listen
    from paged_serve.protocol.errors import ConfigError

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    with pytest.raises(ConfigError, match=r"max_connections=1000 needs more open files .* at most 768"):
        listen.open_http_socket(ServerConfig(port=0, max_connections=1000))
    listen.open_http_socket(ServerConfig(port=0, max_connections=700)).close()


def test_a_frontend_raises_its_open_file_limit_and_survives_reaching_it(start_frontend, start_core):
    """Without a free file the loop must continue, and must not spin on connections that it cannot accept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))  # a limit that a shell may set
    frontend = start_frontend()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    start_core()
    frontend.wait_for_status("/ready", 200)
    process = psutil.Process(frontend.process.pid)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    assert soft == min(hard, OPEN_FILES)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 4, hard))
    links = [socket.create_connection(("127.0.0.1", frontend.port)) for _ in range(20)]
    cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - cpu < 0.5 * (time.monotonic() - began)
    for link in links:
        link.close()
    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    frontend.wait_for_status("/ready", 200)
    with closing(socket.create_connection(("127.0.0.1", frontend.port))) as link:
        link.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert link.recv(4096).startswith(b"HTTP/1.1 200")
