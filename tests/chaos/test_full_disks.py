"""Full file systems: the run directory's, and shared memory. Each server has its own."""

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess

SIZE = "8m"
SHARED_MEMORY = "/dev/shm"


def may_mount() -> bool:
    try:
        done = subprocess.run([*within("/mnt", SIZE), "true"], capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return done.returncode == 0


def within(folder: str | Path, size: str, then: str = "true") -> Sequence[str]:
    """A command prefix that mounts an empty file system of `size` at `folder` and then runs the command."""
    script = f'mount -t tmpfs -o size={size} tmpfs "{folder}" && {then} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.skipif(not may_mount(), reason="mounting a file system of one's own is not permitted here"),
]


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("t")  # a test's own is too long for a socket's path


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another process used part of the space meanwhile
        (folder / "full").write_bytes(bytes(free_bytes(folder)))
    assert free_bytes(folder) == 0


def free_bytes(folder: str | Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def test_a_full_run_directory_ends_no_process_and_a_replacement_runs_without_a_record(folder):
    server = ServerProcess(folder, "--no-standby-workers", within=within(folder, SIZE))
    try:
        server.wait_ready()
        undisturbed = server.complete(max_tokens=96)
        fill(Path(f"/proc/{server.process.pid}/root{folder}"))
        processes = server.children()
        for _ in range(5):  # 200 steps each, with 35 kB of lines; the core's ring has 131 kB
            assert server.complete(max_tokens=200, ignore_eos=True)
        assert {role: server.children()[role] for role in processes} == processes
        stream = server.stream(max_tokens=96)
        received = [next(stream)]
        for role in ("worker", "engine-core"):
            processes[role].kill()
        assert "".join([*received, *stream]) == undisturbed
        server.wait_for_text("is not recorded")
        server.process.terminate()
        assert server.process.wait(60) == 0
    finally:
        server.close()


def ask(server: ServerProcess, method: str, path: str, **body: object) -> tuple[int, dict]:
    with server.ask(method, path, {"temperature": 0, **body} if body else None) as response:
        return response.status, json.loads(response.read() or b"{}")


def test_without_room_for_stored_responses_only_those_are_refused_and_background_responses_wait(folder):
    stored = folder / "stored"
    stored.mkdir()
    store = ("--store-responses", str(stored), "--no-standby-workers")
    server = ServerProcess(folder, *store, within=within(stored, "1m"))
    try:
        server.wait_ready()
        undisturbed = server.complete()
        short = {"input": "What is the capital of France?", "max_output_tokens": 20}
        _, earlier = ask(server, "POST", "/v1/responses", **short)
        _, waiting = ask(server, "POST", "/v1/responses", **{**short, "background": True, "max_output_tokens": 1500})
        inside = Path(f"/proc/{server.process.pid}/root{stored}")
        fill(inside)
        for body in (short, {**short, "previous_response_id": earlier["id"]}, {**short, "background": True}):
            while (answer := ask(server, "POST", "/v1/responses", **body))[0] == 200:
                pass  # the file's last pages have room
            assert answer[0] == 503, answer
            assert "send store: false" in answer[1]["error"]["message"]
        server.wait_for_text("the stored responses cannot be used")
        assert ask(server, "POST", "/v1/responses", **short, store=False)[0] == 200
        assert ask(server, "GET", f"/v1/responses/{earlier['id']}")[1]["output"] == earlier["output"]
        server.children()["frontend"].kill()
        assert server.complete_when_ready() == undisturbed
        (inside / "full").unlink()
        while (answer := ask(server, "GET", f"/v1/responses/{waiting['id']}")[1])["status"] != "completed":
            assert answer["status"] in ("queued", "in_progress"), answer
        assert ask(server, "POST", "/v1/responses", **short)[0] == 200
    finally:
        server.close()


def test_a_run_directory_that_is_too_small_is_refused_at_once(folder):
    server = ServerProcess(folder, within=within(folder, "1m"))
    try:
        assert server.process.wait(60) == 2
        assert "TMPDIR" in server.stderr()
        assert "Traceback" not in server.stderr()
    finally:
        server.close()


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_shared_memory_without_room_changes_nothing(folder, ranks):
    full = f"! head -c 8192 /dev/zero > {SHARED_MEMORY}/full 2> /dev/null"
    server = ServerProcess(folder, "--tp", ranks, within=within(SHARED_MEMORY, "4k", full))
    try:
        server.wait_ready()
        inside = f"/proc/{server.process.pid}/root{SHARED_MEMORY}"
        assert free_bytes(inside) == 0
        undisturbed = server.complete(max_tokens=96)
        stream = server.stream(max_tokens=96)
        received = [next(stream)]
        server.children()["worker"].kill()
        assert "".join([*received, *stream]) == undisturbed
        assert os.listdir(inside) == ["full"]
    finally:
        server.close()
