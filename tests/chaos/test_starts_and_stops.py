"""Servers that start and stop repeatedly, and many that start at once: nothing is left, and none affects another."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess

CYCLES = int(os.environ.get("CYCLES", "200"))
STARTS = int(os.environ.get("STARTS", "50"))
WITHIN_S = 1800.0
SERVER_BYTES = 450 << 20

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
]


def processes_with(folder: Path) -> list[int]:
    """All processes of this machine with this temporary directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def stop(server: ServerProcess) -> None:
    server.signal_and_time(signal.SIGTERM)
    assert server.process.returncode == 0, server.stderr()
    assert "Traceback" not in server.stderr()


def test_repeated_starts_and_stops_leave_nothing_behind(tmp_path_factory):
    run_dirs, texts = tmp_path_factory.mktemp("t"), set()
    ours = psutil.Process().num_fds()
    for cycle in range(CYCLES):
        folder = tmp_path_factory.mktemp(f"c{cycle}")
        server = ServerProcess(folder, run_dirs=run_dirs)
        try:
            server.wait_ready(WITHIN_S)
            texts.add(server.complete())
            stop(server)
        finally:
            server.close()
        assert [path.name for path in run_dirs.glob("*/*")] == [], f"cycle {cycle}"
        assert processes_with(run_dirs) == [], f"cycle {cycle}"
    assert len(texts) == 1
    assert psutil.Process().num_fds() == ours


def test_servers_that_start_at_once_share_only_the_temporary_directory(tmp_path_factory):
    run_dirs = tmp_path_factory.mktemp("t")
    count = min(STARTS, psutil.virtual_memory().available // SERVER_BYTES)
    servers = [
        ServerProcess(tmp_path_factory.mktemp(f"s{number}"), "--no-standby-workers", run_dirs=run_dirs)
        for number in range(count)
    ]
    try:
        for server in servers:
            server.wait_ready(WITHIN_S)
        assert len({server.port for server in servers}) == len(servers)
        assert len(list(run_dirs.glob("*/run-*/control.sock"))) == len(servers)
        assert len({server.complete() for server in servers}) == 1
        assert not any("lost" in server.stderr() for server in servers)
        for server in servers:
            stop(server)
        assert [path.name for path in run_dirs.glob("*/*")] == []
        assert processes_with(run_dirs) == []
    finally:
        for server in servers:
            server.close()
