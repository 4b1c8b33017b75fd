"""`--packed-weights-dir`: keeps a rank's packed weights in a file, so that later starts need not pack them again.

A file is used if it has the same settings and the same checkpoint. Its name identifies the settings (key_of). The
checkpoint's files are the same if their stamps are equal, or otherwise if their checksums are. The file is read into
huge pages instead of being mapped: the pool's threads touch these pages first, so a page is on the NUMA node of the
thread that multiplies it; a truncated file cannot crash the process; and every byte is checked as it is read.
"""

import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.packed_weight import PackedWeight
from ...distributed.huge_pages import allocate
from ...kernels.cpu.checked_file import checksum_of, checksum_of_file, read_into
from ...kernels.cpu.library import Pool
from .records import (
    DTYPES,
    Record,
    SourceFile,
    StoredPacked,
    StoredTensor,
    read_record,
    stamp_of,
    write_record,
)

log = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")
ALIGNMENT = 4096  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DamagedError(Exception):
    """The file does not match its record."""


class PackedStore(Protocol):
    """The source of a load's packed weights and tensors, by name."""

    def weights(self, name: str, pack: Callable[[], list[PackedWeight]]) -> list[PackedWeight]: ...

    def tensor(self, name: str, read: Callable[[], Tensor]) -> Tensor: ...


class PackedReader:
    """Reads an existing file of packed weights."""

    def __init__(self, path: Path, file: int, record: Record, pool: Pool):
        self.path = path
        self.record = record
        self.read_bytes = 0
        self.total_bytes = os.fstat(file).st_size
        self._file = file
        self._pool = pool

    def weights(self, name: str, pack: Callable[[], list[PackedWeight]]) -> list[PackedWeight]:
        """Raises DamagedError."""
        if name not in self.record.weights:
            raise DamagedError(f"it has no {name}")
        return [self._weight(name, stored) for stored in self.record.weights[name]]

    def tensor(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        """Raises DamagedError."""
        if name not in self.record.tensors:
            raise DamagedError(f"it has no {name}")
        return self._tensor(name, self.record.tensors[name])

    def close(self) -> None:
        os.close(self._file)

    def _weight(self, name: str, stored: StoredPacked) -> PackedWeight:
        scales = None if stored.scales is None else self._tensor(name, stored.scales)
        order = None if stored.order is None else self._tensor(name, stored.order)
        return stored.weight(self._tensor(name, stored.data), scales, order)

    def _tensor(self, name: str, stored: StoredTensor) -> Tensor:
        tensor = allocate(tuple(stored.shape), DTYPES[stored.dtype])
        try:
            checksum = read_into(self._pool, tensor, self._file, stored.offset)
        except OSError as error:
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from error
        if checksum != stored.checksum:
            raise DamagedError(f"{name} has the checksum {checksum}, not {stored.checksum}")
        self.read_bytes += tensor.nbytes
        return tensor


class PackedWriter:
    """Writes a file of packed weights under a temporary name, and renames it once it is complete and synced.

    After a write error, such as a full disk, the file is abandoned and the load continues.
    """

    def __init__(self, path: Path, key: str, sources: list[Path], pool: Pool):
        self._path = path
        self._key = key
        self._sources = sources
        self._stamps = [stamp_of(source) for source in sources]
        self._pool = pool
        self._weights: dict[str, list[StoredPacked]] = {}
        self._tensors: dict[str, StoredTensor] = {}
        self._at = 0
        self._file: int | None = None
        self._name = ""
        try:
            self._file, self._name = create_file(path)
        except OSError as error:
            log.warning("no packed weights are kept in %s: %s", path, error.strerror)

    def weights(self, name: str, pack: Callable[[], list[PackedWeight]]) -> list[PackedWeight]:
        packed = pack()
        self._try(lambda file: self._weights.update({name: [self._packed(file, weight) for weight in packed]}))
        return packed

    def tensor(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        tensor = read()
        self._try(lambda file: self._tensors.update({name: self._tensor(file, tensor)}))
        return tensor

    def commit(self, weights_bytes: int, facts: dict[str, str]) -> None:
        """Hash the checkpoint, complete the file and give it its final name."""
        self._try(lambda file: self._commit(file, weights_bytes, facts))
        self.close()

    def close(self) -> None:
        """Delete the file unless it was committed."""
        if self._file is not None:
            os.close(self._file)
            Path(self._name).unlink(missing_ok=True)
            self._file = None

    def _try(self, write: Callable[[int], None]) -> None:
        if self._file is None:
            return
        try:
            write(self._file)
        except OSError as error:
            log.warning("no packed weights are kept in %s: %s", self._path, error.strerror)
            self.close()

    def _packed(self, file: int, weight: PackedWeight) -> StoredPacked:
        scales = None if weight.scales is None else self._tensor(file, weight.scales)
        order = None if weight.order is None else self._tensor(file, weight.order)
        rows_dtype = "" if weight.dtype is None else str(weight.dtype).removeprefix("torch.")
        rest = weight.group_size, weight.has_zeros, weight.skipped, rows_dtype, weight.scale_inputs
        data = self._tensor(file, weight.data)
        return StoredPacked(weight.format, weight.outputs, weight.inputs, data, scales, order, *rest, weight.is_cut)

    def _tensor(self, file: int, tensor: Tensor) -> StoredTensor:
        tensor = tensor.contiguous()
        start = self._at
        left = memoryview(tensor.view(torch.uint8).view(-1).numpy().data)
        while left:
            written = os.pwrite(file, left, self._at)
            left, self._at = left[written:], self._at + written
        self._at += -self._at % ALIGNMENT
        dtype = str(tensor.dtype).removeprefix("torch.")
        return StoredTensor(start, list(tensor.shape), dtype, checksum_of(self._pool, tensor))

    def _commit(self, file: int, weights_bytes: int, facts: dict[str, str]) -> None:
        sources = [
            SourceFile(source.name, stamp, hash_file(self._pool, source))
            for source, stamp in zip(self._sources, self._stamps, strict=True)
        ]
        if [stamp_of(source) for source in self._sources] != self._stamps:
            log.warning("no packed weights are kept in %s: the checkpoint changed while it was read", self._path)
            return
        os.lseek(file, self._at, os.SEEK_SET)
        write_record(file, Record(self._key, sources, self._weights, self._tensors, weights_bytes, facts))
        os.fsync(file)
        os.replace(self._name, self._path)
        log.info("packed weights are kept in %s, %d bytes", self._path, os.fstat(file).st_size)
        os.close(file)
        self._file = None


def through_store(
    path: Path, key: str, sources: list[Path], pool: Pool, load: Callable[[PackedStore], Loaded]
) -> Loaded:
    """Call `load` with the file at `path`, or with a writer of a new file if it is missing, outdated or damaged."""
    if (reader := open_packed(path, key, sources, pool)) is not None:
        try:
            loaded = load(reader)
            log.info("packed weights were read from %s, %d bytes", path, reader.total_bytes)
            return loaded
        except DamagedError as damage:
            log.warning("packed weights in %s are packed again: %s", path, damage)
        finally:
            reader.close()
    writer = PackedWriter(path, key, sources, pool)
    try:
        return load(writer)
    finally:
        writer.close()


def open_packed(path: Path, key: str, sources: list[Path], pool: Pool) -> PackedReader | None:
    """The file at `path` if it is complete and was made from `sources`; otherwise None, with a warning if it exists."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # the writer reports what is wrong with the folder
        return None
    except OSError as error:
        raise ConfigError(f"packed_weights_dir: {path} cannot be read: {error.strerror}; remove it") from error
    record = read_record(file)
    if record is None or record.key != key:
        problem = "it is incomplete"
    elif not _made_from(record.sources, sources, pool):
        problem = "the checkpoint has changed since"
    else:
        return PackedReader(path, file, record, pool)
    os.close(file)
    log.warning("packed weights in %s are packed again: %s", path, problem)
    return None


def create_file(path: Path) -> tuple[int, str]:
    """Create a locked file next to `path`, and remove files that killed writers left behind.

    Raises ConfigError if the folder cannot be written to, OSError if the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f"{path.stem}-*.part"):
            _remove_unlocked(left)
        file, name = tempfile.mkstemp(".part", f"{path.stem}-", path.parent)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise ConfigError(
            f"packed_weights_dir={path.parent} cannot be written to: {error.strerror}; name a folder that can be, or "
            "leave it out"
        ) from error
    fcntl.flock(file, fcntl.LOCK_EX)
    return file, name


def hash_file(pool: Pool, path: Path) -> str:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return checksum_of_file(pool, file, os.fstat(file).st_size)
    finally:
        os.close(file)


def _made_from(known: list[SourceFile], sources: list[Path], pool: Pool) -> bool:
    if [source.name for source in known] != [source.name for source in sources]:
        return False
    pairs = list(zip(known, sources, strict=True))
    if all(source.stamp == stamp_of(path) for source, path in pairs):
        return True
    same_sizes = all(source.stamp[0] == path.stat().st_size for source, path in pairs)
    return same_sizes and all(source.checksum == hash_file(pool, path) for source, path in pairs)


def _remove_unlocked(path: Path) -> None:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # another server removed it, or completed it
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        pass  # its writer is still running
    finally:
        os.close(file)
