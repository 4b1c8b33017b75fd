"""Every signal to every process in every phase: accepted requests finish with identical bytes, and nothing is left."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from .cell import NO_KEY, OPTIONS, Cell, check_end, inject, loading, run_draining, run_while_serving
from .faults import CHILDREN, PROCESSES, SIGNALS, check_no_file_is_left, wait_ended
from .streams.load import Expected
from .streams.load_requests import LoadRequest, draw_requests

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

SERVING = ("idle", "prefill", "decode")
NEEDS_FRESH_SERVER = [
    *(Cell("loading", role, signal) for role, signal in product(PROCESSES, SIGNALS)),
    *(Cell(phase, "supervisor", signal) for phase, signal in product(SERVING, SIGNALS)),
    *(Cell("draining", role, signal) for role, signal in product(PROCESSES, SIGNALS)),
]


@pytest.fixture(scope="module")
def requests() -> list[LoadRequest]:
    return draw_requests(seed=1, count=8, max_tokens=120)


@pytest.fixture(scope="module")
def expected() -> Expected:
    return {}


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[[], ServerProcess]]:
    servers = []

    def start() -> ServerProcess:
        servers.append(ServerProcess(tmp_path_factory.mktemp("t"), *OPTIONS))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory, requests, expected) -> Iterator[ServerProcess]:
    """One server for the cells that it survives."""
    server = ServerProcess(tmp_path_factory.mktemp("t"), *OPTIONS)
    try:
        server.wait_ready()
        asyncio.run(compute_expected(server, requests, expected))
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert wait_ended(server) == 0
        check_no_file_is_left(server)
    finally:
        server.close()


async def compute_expected(server: ServerProcess, requests: list[LoadRequest], expected: Expected) -> None:
    async with loading(server, requests, expected):
        pass


async def serve_all(server: ServerProcess, requests: list[LoadRequest], expected: Expected) -> None:
    await run_while_serving(server, Cell("idle", NO_KEY, ""), requests, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", [Cell(*cell) for cell in product(SERVING, CHILDREN, SIGNALS)], ids=str)
def test_streams_are_exact_after_every_signal_to_a_child(shared, cell, requests, expected):
    asyncio.run(run_while_serving(shared, cell, requests, expected))


@pytest.mark.nightly
@pytest.mark.parametrize("cell", NEEDS_FRESH_SERVER, ids=str)
def test_streams_are_exact_on_a_fresh_server_for_each_fault(shared, start, cell, requests, expected):
    server = start()
    if cell.phase == "loading":
        asyncio.run(inject(server, cell))
        if not cell.ends_all:
            server.wait_ready()
            asyncio.run(serve_all(server, requests, expected))
    else:
        server.wait_ready()
        run = run_draining if cell.phase == "draining" else run_while_serving
        asyncio.run(run(server, cell, requests, expected))
    if not cell.ends_server and cell.phase != "draining":
        server.process.send_signal(signal.SIGTERM)
    check_end(server, cell)


@pytest.mark.nightly  # end_to_end/recovery/test_processes.py loses each child
def test_a_server_survives_a_loss_of_each_child_and_another_while_it_drains(start, requests, expected):
    """A small matrix for machines of any speed: the assertions hold at whatever moment a fault occurs."""
    server = start()
    server.wait_ready()
    for cell in (Cell("decode", "worker", "SIGKILL"), Cell("prefill", "engine-core", "SIGSEGV")):
        asyncio.run(run_while_serving(server, cell, requests[:4], expected))
    asyncio.run(run_while_serving(server, Cell("decode", "frontend", "SIGKILL"), requests[:4], expected))
    last = Cell("draining", "worker", "SIGKILL")
    asyncio.run(run_draining(server, last, requests[:4], expected))
    check_end(server, last)
