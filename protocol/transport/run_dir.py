"""A server's private directory: its sockets, its secret, and how a client of the same user finds it.

<temporary directory>/paged-serve-<uid>/     0700, ours, checked
    run-xxxxxxxx/                            0700, one a server
        secret                               0600, the PLAIN password of every socket
        control.sock engine.sock workers.sock admin-0.sock frontend-0.sock …
/dev/shm/paged-serve-<uid>/                  the same, for files in memory that outlive the server's processes
    run-xxxxxxxx/
"""

import fcntl
import os
import secrets
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from ..errors import ConfigError
from ..messages.message import has_half_pair

CONTROL_SOCKET = "control.sock"
ENGINE_SOCKET = "engine.sock"
WORKERS_SOCKET = "workers.sock"
FRONTEND_SOCKET = "frontend-{}.sock"  # of frontend 0, 1, …, for the other frontends
ADMIN_SOCKET = "admin-{}.sock"  # of frontend 0, 1, …
SECRET_FILE = "secret"
POISON_TEXTS = "poison-texts"  # digests of texts that frontends may have ended from
SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 << 20  # the flight record of a process takes 128 KB
MAX_PATH_BYTES = 100  # a unix socket's address holds 107 bytes, 103 on macOS

_held: dict[str, int] = {}  # run directories of this process -> descriptor whose lock marks them as live


def _release_in_fork() -> None:
    """Release the locks: every copy of a descriptor keeps its lock, and a fork may outlive the server."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_fork)


def endpoint(run_dir: str, name: str) -> str:
    """ZeroMQ address of one of the sockets above."""
    return f"ipc://{run_dir}/{name}"


def make_run_dir() -> str:
    """Create a server's directory with a new secret in it; the caller removes it at the end.

    Raises ConfigError when the temporary directory is not a safe or usable place for sockets.
    """
    try:
        return _make_run_dir(_checked_parent())
    except OSError as error:
        raise ConfigError(f"cannot make a run directory: {error}. Set TMPDIR to another place") from None


def _make_run_dir(parent: Path) -> str:
    if has_half_pair(str(parent)):
        raise ConfigError(f"{str(parent)!a} is not UTF-8. Set TMPDIR to another place")
    _check_room(parent)
    path = tempfile.mkdtemp(prefix="run-", dir=parent)
    longest = len(os.fsencode(f"{path}/{CONTROL_SOCKET}"))
    if longest > MAX_PATH_BYTES:
        os.rmdir(path)
        raise ConfigError(
            f"socket paths in {path} take {longest} bytes; at most {MAX_PATH_BYTES} work. Set TMPDIR to a shorter path"
        )
    _held[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(_held[path], fcntl.LOCK_EX)
    descriptor = os.open(f"{path}/{SECRET_FILE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def make_memory_dir(run_dir: str) -> Path:
    """Create the run's directory for files in memory, or find it; `remove_run_dir` removes it.

    Raises OSError.
    """
    path = _memory_dir(run_dir)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not _only_ours(path.parent):
        raise PermissionError(f"{path.parent} is not a directory that only this user can enter (0700)")
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def find_run_dirs() -> list[str]:
    """Directories of this user's running servers, newest first: those with a listener on the control socket."""
    living = [path for path in _control_sockets() if _listening(path)]
    return [str(path.parent) for path in sorted(living, key=_made_at, reverse=True)]


def has_ended(path: str) -> bool:
    """Whether the server of this run directory is gone, even if it was killed before it could remove the directory."""
    control = Path(path) / CONTROL_SOCKET
    return not Path(path).is_dir() or (control.exists() and not _listening(control))


def remove_run_dir(path: str) -> None:
    """Remove a directory that `make_run_dir` created; it may be gone already."""
    if Path(path).parent != _parent() or not Path(path).name.startswith("run-"):
        raise ValueError(f"{path} is not a run directory of this user")
    shutil.rmtree(path, ignore_errors=True)
    if (memory := _memory_dir(path)).is_dir() and _only_ours(memory.parent):
        shutil.rmtree(memory, ignore_errors=True)
    if path in _held:
        os.close(_held.pop(path))


def remove_dead_run_dirs() -> list[str]:
    """Remove the directories of killed servers: those with a control socket and without a process that holds the lock.

    A listener would not be the right test: a server that is just starting binds its socket before it listens.
    """
    dead = [str(path.parent) for path in _control_sockets() if not _is_held(path.parent)]
    for path in dead:
        remove_run_dir(path)
    return dead


def _parent() -> Path:
    return Path(tempfile.gettempdir()) / f"paged-serve-{os.getuid()}"


def _memory_dir(run_dir: str) -> Path:
    return SHARED_MEMORY / _parent().name / Path(run_dir).name


def _checked_parent() -> Path:
    parent = _parent()
    parent.mkdir(mode=0o700, exist_ok=True)
    if not _only_ours(parent):
        raise ConfigError(f"{parent} is not a directory that only this user can enter (0700); remove it or set TMPDIR")
    return parent


def _check_room(parent: Path) -> None:
    found = os.statvfs(parent)
    free = found.f_bavail * found.f_frsize
    if free < NEEDED_BYTES:
        raise ConfigError(
            f"{parent} has {free} bytes left; a server's files there take up to {NEEDED_BYTES}. Make room, or set "
            "TMPDIR to another place"
        )


def _only_ours(path: Path) -> bool:
    found = path.lstat()  # not stat, which would follow another user's link
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _control_sockets() -> list[Path]:
    parent = _parent()
    return list(parent.glob(f"run-*/{CONTROL_SOCKET}")) if parent.exists() and _only_ours(parent) else []


def _made_at(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:  # the server ended meanwhile
        return 0


def _listening(path: Path) -> bool:
    try:
        probe = socket.socket(socket.AF_UNIX)
    except OSError:  # too many open files: nothing is known of the server
        return True
    with probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # the queue of the listener is full
            return True
        except OSError:
            return False
    return True


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # the server ended meanwhile
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
