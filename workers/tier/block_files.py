"""The folder of one rank's blocks: a file for each, found by its name and trusted only by its contents.

A file has a header of HEADER_BYTES and the block's bytes. The header repeats the key and the folder's name, so that a
file under another's name, or of another model, is found out; its checksum covers both and all bytes. Files are written
under a temporary name and renamed. No file is synchronised with the disk: after a crash of the machine it may have any
contents, and is found out, too. Other servers may use the folder at the same time: files may appear and vanish.
"""

import hashlib
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from paged_serve.protocol.messages.loading.kv_tiers import KEY_BYTES, MAX_KEYS

from .block_memory import Parts
from .checksum import Checksum

log = logging.getLogger(__name__)

MAGIC, VERSION, FOLDER_BYTES = b"psKVtier", 2, 16
FIELDS = struct.Struct(f"<8sIQ{KEY_BYTES}s10x{FOLDER_BYTES}s")  # magic, version, bytes of the block, key, folder
HEADER_BYTES = 128
CHECKSUM_BYTES = 16
TEMPORARY = ".writing-"
MAX_PIECES = 1024  # of memory in one call; Linux allows no more
ABANDONED_S = 3600.0  # a temporary file that is older belongs to a process that was killed


class BlockFiles:
    """Blocks of `block_bytes` bytes, at most `max_bytes` in all: the least recently used are removed.

    Two threads may use it, one that stores and one that loads.
    """

    def __init__(self, folder: Path, block_bytes: int, max_bytes: int):
        self.folder = folder
        self._folder_digest = hashlib.blake2b(folder.name.encode(), digest_size=FOLDER_BYTES).digest()
        self._block_bytes = block_bytes
        self._file_bytes = HEADER_BYTES + block_bytes
        self.max_blocks = max_bytes // self._file_bytes
        self._known: OrderedDict[bytes, None] = OrderedDict()  # keys, least recently used first
        self._lock = threading.Lock()
        self._num_written = 0
        self.is_full = False  # an error ended storing

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def keys(self) -> list[bytes]:
        """The keys of all files, at most MAX_KEYS, the most recently used last."""
        with self._lock:
            return list(self._known)[-MAX_KEYS:]

    def open(self) -> None:
        """Create the folder or read its names. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(self.folder)
        found, now = list[tuple[float, bytes]](), time.time()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    modified = entry.stat(follow_symlinks=False).st_mtime
                except FileNotFoundError:  # another server has just renamed or removed it
                    continue
                is_temporary = entry.name.startswith(TEMPORARY)
                if is_temporary and now - modified > ABANDONED_S:
                    self._unlink(self.folder / entry.name)
                elif not is_temporary and len(entry.name) == 2 * KEY_BYTES:
                    found.append((modified, _key_of(entry.name)))
        found.sort()
        with self._lock:
            self._known = OrderedDict((key, None) for _, key in found if key)
        self.make_room(0)

    def make_room(self, count: int) -> list[bytes]:
        """Remove files until `count` more may be written; returns their keys."""
        removed = []
        while len(self._known) + count > self.max_blocks and self._known:
            with self._lock:
                key, _ = self._known.popitem(last=False)
            self._unlink(self._path(key))
            removed.append(key)
        return removed

    def remove(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remove these files; returns the keys of those that were known."""
        gone = [key for key in keys if self._drop(key)]
        for key in gone:
            self._unlink(self._path(key))
        return gone

    def write(self, key: bytes, block: Parts, checksum: Checksum) -> bool:
        """Store `block`, for which there is room. Returns False, and stops storing, if it cannot be written."""
        if self.is_full or not self.max_blocks:
            return False
        fields = self._fields(key)
        header = (fields + _sealed(fields, checksum.of(block))).ljust(HEADER_BYTES, b"\0")
        self._num_written += 1
        temporary = self.folder / f"{TEMPORARY}{os.getpid()}-{id(self)}-{self._num_written}"
        try:
            _write(temporary, [memoryview(header), *block.views()])
            temporary.rename(self._path(key))
        except OSError as error:
            self.is_full = True
            log.error(
                "no more blocks are stored in %s: %s; free or raise its space, and restart", self.folder, error.strerror
            )
            self._unlink(temporary)
            return False
        with self._lock:
            self._known[key] = None
            self._known.move_to_end(key)
        return True

    def read(self, key: bytes, block: Parts, checksum: Checksum) -> bool:
        """Fill `block`. False: there is no such file, or it is damaged and was removed; what `block` has is unknown."""
        path, fields = self._path(key), self._fields(key)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            self._drop(key)
            return False
        try:
            header = os.pread(file, HEADER_BYTES, 0)
            is_right = header.startswith(fields) and os.fstat(file).st_size == self._file_bytes
            if is_right:
                sealed = _sealed(fields, checksum.read(block, file, HEADER_BYTES))
                is_right = header[len(fields) :].startswith(sealed)
            if is_right:
                os.utime(file)
        except OSError as error:
            log.warning("block %s cannot be read: %s", path.name, error)
            is_right = False
        finally:
            os.close(file)
        if not is_right:
            log.warning("damaged block %s is removed, and computed again", path)
            self.remove([key])
        else:
            self._touch(key)
        return is_right

    def _touch(self, key: bytes) -> None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)

    def _drop(self, key: bytes) -> bool:
        with self._lock:
            return self._known.pop(key, False) is None

    def _fields(self, key: bytes) -> bytes:
        return FIELDS.pack(MAGIC, VERSION, self._block_bytes, key, self._folder_digest)

    def _path(self, key: bytes) -> Path:
        return self.folder / key.hex()

    @staticmethod
    def _unlink(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error.strerror)


def _sealed(fields: bytes, of_block: bytes) -> bytes:
    return hashlib.blake2b(fields + of_block, digest_size=CHECKSUM_BYTES).digest()


def _key_of(name: str) -> bytes:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""


def _write(path: Path, rest: list[memoryview]) -> None:
    file = _create(path)
    try:
        start = 0  # of what is not written yet
        while start < len(rest):
            written = os.writev(file, rest[start : start + MAX_PIECES])
            while start < len(rest) and written >= len(rest[start]):
                written -= len(rest[start])
                start += 1
            if written:
                rest[start] = rest[start][written:]
    finally:
        os.close(file)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:  # the tier was deleted, or this rank's folder in it
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
