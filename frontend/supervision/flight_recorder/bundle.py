"""The report of the flight recorder: one JSON file, which `paged-serve doctor` reads."""

import itertools
import os
import re
import time
from pathlib import Path

import msgspec

from paged_serve.protocol.errors import ConfigError

from ...state_folder import state_folder

FORMAT = 1
MAX_BUNDLES = 10  # the oldest are removed
MAX_BUNDLE_BYTES = 8 << 20  # a larger file is not a bundle
NO_FOLDER = "none"
_NAME = re.compile(r"^\d{8}T\d{6}Z-\d+-\d+\.json$")


class ThreadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thread as the kernel sees it; "" where the kernel does not show it."""

    name: str
    state: str  # R runs, S sleeps, D waits for a device, T is halted, Z has ended
    waits_in: str = ""  # the kernel's function
    kernel_stack: str = ""


class ProcessReport(msgspec.Struct, frozen=True):
    """One process at the moment of the report."""

    name: str
    pid: int
    epoch: int
    state: str  # as the supervisor sees it: spawned, greeted, ready, drained, dead
    silence_s: float  # since its last message
    end: str  # how it ended; "" while it runs
    memory: dict[str, str]  # lines of /proc/PID/status
    threads: tuple[ThreadReport, ...]
    stacks: str  # of all threads, from the interpreter
    lines: tuple[str, ...]  # the last log lines; a core's steps


class Bundle(msgspec.Struct, frozen=True):
    reason: str
    written_at: float  # seconds since 1970
    version: str
    platform: str
    config: msgspec.Raw  # keys masked
    processes: tuple[ProcessReport, ...]
    events: tuple[str, ...]  # of the supervisor, oldest first
    core_state: msgspec.Raw = msgspec.Raw(b"{}")
    format: int = FORMAT


def dump_folder(configured: str) -> Path | None:
    """The folder of bundles; None when none are written, also for a user without a home folder."""
    if configured == NO_FOLDER:
        return None
    folder = Path(os.path.expanduser(configured)) / "paged-serve" if configured else state_folder()
    return None if folder is None else folder / "dumps"


def bundles_in(folder: Path) -> list[Path]:
    """All bundles in `folder`, oldest first."""
    return sorted(path for path in folder.glob("*.json") if _NAME.match(path.name)) if folder.is_dir() else []


def write_bundle(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle that only this user can read, after removing the oldest beyond the limit. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in bundles_in(folder)[: 1 - MAX_BUNDLES]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(bundle.written_at))
    names = (f"{stamp}-{os.getpid()}-{number:03d}.json" for number in itertools.count())
    path = next(path for name in names if not (path := folder / name).exists())
    unfinished = path.with_suffix(".unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(bundle))
        unfinished.replace(path)
    except OSError:  # a full disk: what is written of it only takes space
        unfinished.unlink(missing_ok=True)
        raise
    return path


def read_bundle(path: Path) -> Bundle:
    """Raises ConfigError when the file is too large, unreadable, or not a bundle of this format."""
    try:
        if path.stat().st_size > MAX_BUNDLE_BYTES:
            raise ConfigError(f"{path} is larger than any report")
        bundle = msgspec.json.decode(path.read_bytes(), type=Bundle)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a report of a lost process: {error}") from error
    if bundle.format != FORMAT:
        raise ConfigError(f"{path} has format {bundle.format}; this version reads {FORMAT}")
    return bundle
