"""`--packed-weights-dir` with a real server: a replacement worker reads the file, and rewrites a damaged one."""

import time
from collections.abc import Iterator

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import runnable_isas

from ..server_process import ServerProcess

LONG = {"max_tokens": 300, "ignore_eos": True}
WRITTEN, READ = "packed weights are kept in ", "packed weights were read from "
pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.skipif(not runnable_isas(), reason="the kernels are not built"),
]


@pytest.fixture
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("t")
    running = ServerProcess(home, "--no-standby-workers", "--packed-weights-dir", str(home / "packed"))
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def wait_for(server: ServerProcess, line: str, count: int) -> None:
    """Wait until the log has `line` `count` times."""
    deadline = time.monotonic() + 60
    while (stderr := server.stderr()).count(line) < count:
        assert time.monotonic() < deadline, stderr
        time.sleep(0.02)
    assert stderr.count(line) == count, stderr


def stream_with_a_kill(server: ServerProcess) -> str:
    """The whole text of a stream whose worker is killed after its beginning."""
    stream = server.stream(**LONG)
    first = next(stream)
    server.children()["worker"].kill()
    rest = list(stream)
    assert rest, "the stream had ended before the kill"
    return first + "".join(rest)


# workers/checkpoint/test_packed_cache.py has damaged files in the fast tests.
@pytest.mark.parametrize("damages", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_replacement_worker_reads_the_packed_file_and_rewrites_a_damaged_one(server, damages):
    undisturbed = server.complete(**LONG)
    (path,) = (server.temporary / "packed").iterdir()
    whole = path.read_bytes()
    assert (server.stderr().count(f"{WRITTEN}{path}"), server.stderr().count(READ)) == (1, 0)

    assert stream_with_a_kill(server) == undisturbed
    wait_for(server, f"{READ}{path}, {len(whole)} bytes", 1)

    if not damages:
        return
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert stream_with_a_kill(server) == undisturbed
    wait_for(server, f"packed weights in {path} are packed again: ", 1)
    assert "has the checksum" in server.stderr()
    wait_for(server, f"{WRITTEN}{path}", 2)
    assert path.read_bytes() == whole
