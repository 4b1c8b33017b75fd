"""Faults in two and three processes at once: accepted requests finish with identical bytes."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from .cell import OPTIONS
from .faults import HELPER, check_no_file_is_left, wait_ended
from .streams.load_requests import draw_requests
from .together import Injection, all_signals, children_of, run_injections, same_signal

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

SIZES = (1, 2, 4)
STANDBYS = 4  # one less than the supervisor replaces
CORE_LOSS: tuple[Injection, ...] = (("engine-core", "SIGKILL"),)
REQUESTS = draw_requests(seed=3, count=4, max_tokens=100)
STOPPED_RANKS: tuple[Injection, ...] = (("worker 0", "SIGSTOP"), ("worker 1", "SIGSTOP"))
STOPPED_ENGINE: tuple[Injection, ...] = (("engine-core", "SIGSTOP"), ("worker 0", "SIGSTOP"))
HELPER_LOSS: tuple[Injection, ...] = ((HELPER, "SIGKILL"),)


def id_of(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(f"{role} {name}" for role, name in value)
    return f"tp{value}"


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[..., ServerProcess]]:
    servers = []

    def start(size: int, *options: str) -> ServerProcess:
        server = ServerProcess(tmp_path_factory.mktemp("t"), *OPTIONS, "--tp", str(size), *options)
        servers.append(server)
        server.wait_ready()
        return server

    yield start
    for server in servers:
        server.close()


def serve_through(server: ServerProcess, *all_injections: tuple[Injection, ...]) -> None:
    expected = {}
    for injections in all_injections:
        asyncio.run(run_injections(server, injections, REQUESTS, expected))
    server.process.send_signal(signal.SIGTERM)
    assert wait_ended(server) == 0, server.stderr()
    check_no_file_is_left(server)


def batches(sets: Iterator[tuple[Injection, ...]]) -> Iterator[list[tuple[Injection, ...]]]:
    """Batches for one server each: a server that loses more than STANDBYS within a minute stops replacing them."""
    batch: list[tuple[Injection, ...]] = []
    for injections in sets:
        batch.append(injections)
        if sum("standby" in dict(each) for each in batch) == STANDBYS:
            yield batch
            batch = []
    yield batch


@pytest.mark.nightly
def test_streams_survive_stopped_ranks_then_a_core_stopped_with_a_rank_then_a_lost_helper(start):
    serve_through(start(2, "--no-standby-workers"), STOPPED_RANKS, CORE_LOSS, STOPPED_ENGINE, HELPER_LOSS)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("size", "injections"), [(size, pair) for size in SIZES for pair in all_signals(children_of(size), 2)], ids=id_of
)
def test_streams_survive_every_pair_of_faults_on_a_fresh_server(start, size, injections):
    serve_through(start(size), injections)


@pytest.mark.nightly
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_streams_survive_every_pair_and_triple_of_faults_in_sequence(start, size, count):
    """All sets on one server, after a loss of the core and all faults before."""
    sets = all_signals(children_of(size), 2) if count == 2 else same_signal(children_of(size), 3)
    for batch in batches(sets):
        serve_through(start(size), CORE_LOSS, *batch)
