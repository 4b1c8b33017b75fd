"""Records the last events of a process, to be read after its death: two small files in the run directory.

    flight/<name>.<pid>.lines    a ring in shared memory: the last log lines and notes of the process
    flight/<name>.<pid>.stacks   the stacks of all threads, written by the interpreter at SIGUSR2 and at a fault

Neither file contains a prompt, an output or a token id.
"""

import faulthandler
import logging
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO

FLIGHT_DIR = "flight"
LOGGER = "paged_serve"  # the parent of all loggers in paged-serve
STACKS_SIGNAL = signal.SIGUSR2
RING_BYTES = 128 << 10
_HEADER_BYTES = 8  # bytes ever written, little-endian

log = logging.getLogger(__name__)


class LineRing:
    """The last lines of text, in a file that outlives its writer. One writer; readers may see a torn first line."""

    def __init__(self, path: Path):
        """Raises OSError unless the disk has room for the whole file: a page missing later would be a SIGBUS."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _HEADER_BYTES + RING_BYTES)
            self._memory = mmap.mmap(descriptor, _HEADER_BYTES + RING_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._written = 0

    def add(self, line: str) -> None:
        data = line.encode(errors="replace")[: RING_BYTES // 4] + b"\n"
        start = self._written % RING_BYTES
        head = data[: RING_BYTES - start]
        self._memory[_HEADER_BYTES + start : _HEADER_BYTES + start + len(head)] = head
        if len(head) < len(data):
            self._memory[_HEADER_BYTES : _HEADER_BYTES + len(data) - len(head)] = data[len(head) :]
        self._written += len(data)
        self._memory[:_HEADER_BYTES] = self._written.to_bytes(_HEADER_BYTES, "little")


def read_lines(path: Path) -> list[str]:
    """The complete lines of a ring, oldest first; none when the file does not exist."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    written, ring = int.from_bytes(data[:_HEADER_BYTES], "little"), data[_HEADER_BYTES:]
    if written <= len(ring):
        return ring[:written].decode(errors="replace").splitlines()
    start = written % len(ring)
    return (ring[start:] + ring[:start]).decode(errors="replace").splitlines()[1:]


class CopyLog(logging.Handler):
    """Passes each log line of paged-serve to `add` as well."""

    def __init__(self, add: Callable[[str], None]):
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
        self._add = add

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._add(self.format(record).replace("\n", "\\n"))
        except Exception:
            self.handleError(record)

    def __enter__(self) -> "CopyLog":
        logging.getLogger(LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self)


def flight_path(run_dir: str, name: str, pid: int, kind: str) -> Path:
    """The path of a process's record: `name` as in `name_process`, `kind` "lines" or "stacks"."""
    return Path(run_dir) / FLIGHT_DIR / f"{name}.{pid}.{kind}"


class FlightRecord:
    """This process's record. Keep the object alive: the interpreter knows the stacks file only by its descriptor."""

    def __init__(self, ring: LineRing | None = None, stacks: IO[bytes] | None = None):
        self._ring = ring
        self._stacks = stacks

    def note(self, line: str) -> None:
        if self._ring is not None:
            self._ring.add(line)


def record_flight(run_dir: str, name: str) -> FlightRecord:
    """Start recording this process; without room for the files, log a warning and record nothing.

    From here on STACKS_SIGNAL does not end the process.
    """
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
    try:
        (Path(run_dir) / FLIGHT_DIR).mkdir(mode=0o700, exist_ok=True)
        ring = LineRing(flight_path(run_dir, name, os.getpid(), "lines"))
        stacks = flight_path(run_dir, name, os.getpid(), "stacks").open("wb", buffering=0)
    except OSError as error:
        log.warning("flight record of this process is not recorded: %s", error)
        return FlightRecord()
    os.fchmod(stacks.fileno(), 0o600)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    CopyLog(ring.add).__enter__()  # until this process ends
    return FlightRecord(ring, stacks)
