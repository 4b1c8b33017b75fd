"""The private directory of a server: created safely, found while its server runs, gone afterwards."""

import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.transport import run_dir


@pytest.fixture
def temporary(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="p") as folder:  # short: pytest's own are too long for a socket's path
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def listen(path, name=run_dir.CONTROL_SOCKET):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}/{name}")
    listener.listen()
    return listener


def test_only_the_owner_can_enter_and_read_the_secret(temporary):
    path = run_dir.make_run_dir()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(Path(path).parent).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{path}/secret").st_mode) == 0o600
    assert len(Path(f"{path}/secret").read_text()) == 64


def test_every_run_has_its_own_directory_and_secret(temporary):
    first, second = run_dir.make_run_dir(), run_dir.make_run_dir()
    assert first != second
    assert Path(f"{first}/secret").read_text() != Path(f"{second}/secret").read_text()


def test_a_parent_that_others_can_enter_is_refused(temporary):
    (temporary / f"paged-serve-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="0700"):
        run_dir.make_run_dir()


def test_a_parent_that_is_a_link_is_refused(temporary):
    (temporary / "elsewhere").mkdir(mode=0o700)
    (temporary / f"paged-serve-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(ConfigError, match="0700"):
        run_dir.make_run_dir()


def test_a_disk_that_is_too_full_is_refused_with_the_numbers(temporary, monkeypatch):
    full = os.statvfs_result((4096, 4096, 1000, 500, 100, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(ConfigError, match=rf"409600 bytes left.*{run_dir.NEEDED_BYTES}.*TMPDIR"):
        run_dir.make_run_dir()


def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(temporary, monkeypatch):
    (temporary / f"paged-serve-{os.getuid()}").write_text("a file is there")
    with pytest.raises(ConfigError, match="TMPDIR"):
        run_dir.make_run_dir()


def test_a_temporary_directory_too_deep_for_sockets_is_refused(temporary, monkeypatch):
    deep = temporary / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="TMPDIR"):
        run_dir.make_run_dir()
    assert not list(deep.glob("*/run-*"))


def test_a_temporary_directory_whose_name_no_message_can_carry_is_refused(temporary, monkeypatch):
    (temporary / "caf\udce9").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "caf\udce9"))
    with pytest.raises(ConfigError, match=r"not UTF-8.*TMPDIR"):
        run_dir.make_run_dir()
    assert not list((temporary / "caf\udce9").glob("*/run-*"))


def test_living_servers_are_found_newest_first(temporary):
    assert run_dir.find_run_dirs() == []
    first, second, silent = (run_dir.make_run_dir() for _ in range(3))
    with listen(second), listen(first):
        os.utime(f"{second}/control.sock", ns=(1, 1))
        assert run_dir.find_run_dirs() == [first, second]
    assert run_dir.find_run_dirs() == []
    assert Path(silent).exists()


def test_a_client_that_may_open_no_file_does_not_take_its_server_for_ended(temporary):
    path = run_dir.make_run_dir()
    with listen(path):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            assert not run_dir.has_ended(path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_server_planted_by_another_user_is_not_found(temporary):
    path = run_dir.make_run_dir()
    with listen(path):
        assert run_dir.find_run_dirs() == [path]
        Path(path).parent.chmod(0o777)
        assert run_dir.find_run_dirs() == []


KILLED = """
import os, socket
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, make_run_dir
path = make_run_dir()
socket.socket(socket.AF_UNIX).bind(f"{path}/{CONTROL_SOCKET}")
print(path, flush=True)
os._exit(1)
"""


def test_only_the_remains_of_killed_servers_are_removed(temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True)
    dead = killed.stdout.strip()
    living, starting, binding = (run_dir.make_run_dir() for _ in range(3))
    with listen(living), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{binding}/{run_dir.CONTROL_SOCKET}")
        assert Path(dead).exists()
        assert run_dir.remove_dead_run_dirs() == [dead]
        assert [Path(path).exists() for path in (living, starting, binding, dead)] == [True, True, True, False]


def test_only_run_directories_are_ever_removed(temporary):
    path = run_dir.make_run_dir()
    with pytest.raises(ValueError, match="not a run directory"):
        run_dir.remove_run_dir(str(temporary))
    run_dir.remove_run_dir(path)
    run_dir.remove_run_dir(path)
    assert not Path(path).exists()
