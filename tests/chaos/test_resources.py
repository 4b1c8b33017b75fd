"""Running processes run out of files, disk or memory: running requests continue, and later ones are served."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable, Iterator

import psutil
import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from .cell import NO_KEY, OPTIONS, Cell, check_end, check_load, loading, run_while_serving, until_all_have_begun
from .faults import CHILDREN, process_of
from .streams.load import Expected, Load
from .streams.load_requests import draw_requests
from .streams.transports import NUM_TRANSPORTS

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.nightly,
]

FREE_FILES = 3
MORE_CONNECTIONS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("t"), *OPTIONS)
    try:
        server.wait_ready()
        yield server
        server.process.terminate()
        check_end(server, Cell("idle", NO_KEY, ""))
    finally:
        server.close()


@pytest.fixture(scope="module")
def expected() -> Expected:
    return {}


@contextlib.contextmanager
def limited(process: psutil.Process, kind: int, value: int) -> Iterator[None]:
    """Limit a resource of the process to `value`; afterwards restore its limit, if it is alive."""
    before = process.rlimit(kind)
    process.rlimit(kind, (min(value, before[1]) if before[1] >= 0 else value, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(kind, before)


@contextlib.contextmanager
def no_more_files(server: ServerProcess, role: str) -> Iterator[None]:
    process = process_of(server, role)
    assert process is not None
    with limited(process, resource.RLIMIT_NOFILE, process.num_fds() + FREE_FILES), contextlib.ExitStack() as opened:
        for _ in range(MORE_CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        yield


@contextlib.contextmanager
def no_more_disk(server: ServerProcess, role: str) -> Iterator[None]:
    """No process can extend a file, including logs, while one process must be replaced."""
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    with contextlib.ExitStack() as limits:
        for process in processes:
            limits.enter_context(limited(process, resource.RLIMIT_FSIZE, 0))
        victim = process_of(server, role)
        assert victim is not None
        victim.kill()
        yield


@contextlib.contextmanager
def no_more_memory(server: ServerProcess, role: str) -> Iterator[None]:
    """The process may allocate no further address space."""
    process = process_of(server, role)
    assert process is not None
    with limited(process, resource.RLIMIT_AS, process.memory_info().vms):
        yield


async def serve_through(server: ServerProcess, expected: Expected, end: Callable, role: str) -> Load:
    requests = draw_requests(seed=2, count=6, max_tokens=120)
    async with loading(server, requests, expected) as load:
        asking = asyncio.create_task(load.once())
        await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(requests))
        with end(server, role):
            await asyncio.sleep(3.0)
        await asking
    await run_while_serving(server, Cell("idle", NO_KEY, ""), requests, expected)
    return load


@pytest.mark.parametrize("role", CHILDREN)
@pytest.mark.parametrize("end", [no_more_files, no_more_disk, no_more_memory], ids=lambda end: end.__name__)
def test_the_service_survives_an_exhausted_resource(server, expected, end, role):
    load = asyncio.run(serve_through(server, expected, end, role))
    check_load(Cell("decode", "frontend", "SIGKILL"), load)  # a process may be replaced; nothing may be lost
