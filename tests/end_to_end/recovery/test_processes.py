"""The whole server with the demo model: killed processes are replaced without a changed byte; a stop leaves nothing."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.supervision.flight_recorder.bundle import bundles_in, dump_folder, read_bundle
from paged_serve.frontend.supervision.flight_recorder.diagnosis import diagnosis
from paged_serve.protocol.process.flight_record import FLIGHT_DIR

from ...soak.watch import shared_memory
from ..server_process import PROMPT, ServerProcess, is_alive

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[..., ServerProcess]]:
    servers = []

    def start(*options: str) -> ServerProcess:
        servers.append(ServerProcess(tmp_path_factory.mktemp("t"), *options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    """A server that may lose any number of processes; its reports are in its temporary folder."""
    folder = tmp_path_factory.mktemp("t")
    server = ServerProcess(folder, "--no-standby-workers", "--max-restarts", "100", "--dump-dir", str(folder))
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


# Below, streams continue after the death of a worker, at once or when a halted supervisor continues.
# resume/test_resume_engine.py kills a core.
@pytest.mark.nightly
@pytest.mark.parametrize("role", ["worker", "engine-core"])
def test_a_stream_continues_with_the_same_bytes_after_a_kill(server, role):
    undisturbed = server.complete(max_tokens=96)
    stream = server.stream(max_tokens=96)
    received = [next(stream)]  # a busy frontend may join many tokens in one piece
    server.children()[role].kill()
    got = "".join([*received, *stream])
    assert got == undisturbed, server.stderr()


def test_a_standby_takes_a_killed_workers_place_and_nothing_outlives_a_killed_supervisor(start):
    server = start()
    server.wait_ready()
    undisturbed = server.complete(max_tokens=96)
    standby = server.wait_for_standby()
    stream = server.stream(max_tokens=96)
    received = [next(stream)]
    server.children()["worker"].kill()
    got = "".join([*received, *stream])
    assert got == undisturbed, server.stderr()
    assert server.children()["worker"] == standby
    server.signal_and_time(signal.SIGKILL)


def test_a_killed_frontend_is_replaced_on_the_same_port(server):
    before = server.complete()
    frontend = server.children()["frontend"]
    frontend.kill()
    frontend.wait()
    assert server.complete_when_ready() == before


def test_flight_records_of_ended_processes_do_not_accumulate(server):
    for _ in range(2):
        server.complete_when_ready()
        gone = server.children()["frontend"]
        gone.kill()
        gone.wait()
    server.complete_when_ready()
    [folder] = server.temporary.glob(f"paged-serve-*/run-*/{FLIGHT_DIR}")
    of_frontends = {path.name.split(".")[1] for path in folder.glob("frontend-0.*")}
    assert of_frontends == {str(gone.pid), str(server.children()["frontend"].pid)}


def test_a_halted_worker_is_replaced_and_the_stream_continues(server):
    undisturbed = server.complete(max_tokens=96)
    stream = server.stream(max_tokens=96)
    received = [next(stream)]
    os.kill(server.children()["worker"].pid, signal.SIGSTOP)
    got = "".join([*received, *stream])
    assert got == undisturbed, server.stderr()


def test_a_halted_supervisor_is_continued_and_the_stream_continues(server):
    undisturbed = server.complete(max_tokens=1500)
    supervisor, worker = psutil.Process(server.process.pid), server.children()["worker"]
    stream = server.stream(max_tokens=1500)
    received = [next(stream)]
    worker.suspend()  # at once: the answer must not be complete before the supervisor halts
    supervisor.suspend()
    worker.kill()  # it is not replaced until the supervisor continues
    got = "".join([*received, *stream])
    assert got == undisturbed, server.stderr()
    assert supervisor.status() != psutil.STATUS_STOPPED
    server.wait_for_text("the supervisor (pid")


def test_a_halted_supervisor_is_continued_when_its_only_frontend_has_died(server):
    undisturbed, frontend = server.complete_when_ready(), server.children()["frontend"]
    psutil.Process(server.process.pid).suspend()
    frontend.kill()
    while is_alive(frontend):
        time.sleep(0.001)
    assert server.complete() == undisturbed, server.stderr()


def test_a_report_describes_all_processes_and_no_request_contents(server):
    answer = server.complete(max_tokens=96)
    earlier = set(bundles_in(folder := dump_folder(str(server.temporary))))
    stream = server.stream(max_tokens=1500)
    next(stream)
    server.process.send_signal(signal.SIGUSR1)
    while not (paths := set(bundles_in(folder)) - earlier):
        next(stream, None)
    [path] = paths
    assert PROMPT["prompt"] not in path.read_text()
    assert answer[:20] not in path.read_text()
    text = "\n".join(diagnosis(read_bundle(path)))
    assert "asked for by SIGUSR1" in text
    assert "the audit finds nothing wrong" in text
    core = server.children()["engine-core"].pid
    assert re.search(rf"engine-core \(pid {core}, epoch \d+\): ready, \d+ MB", text)


def test_a_signal_lets_a_running_stream_end_and_leaves_nothing(start):
    server = start("--no-standby-workers")
    server.wait_ready()
    undisturbed = server.complete(max_tokens=96)
    processes = [psutil.Process(server.process.pid), *server.children().values()]
    assert set().union(*map(shared_memory, processes)) == set()
    stream = server.stream(max_tokens=96)
    received = [next(stream)]
    server.process.send_signal(signal.SIGTERM)
    got = "".join([*received, *stream])
    assert got == undisturbed, server.stderr()
    assert server.process.wait(60) == 0
    psutil.wait_procs(processes, 60)
    assert not any(map(is_alive, processes))
    assert [path.name for path in server.temporary.glob("paged-serve-*/*")] == []
