"""Checksums of blocks while they are read and written: with the CPU kernels several GB/s, without them hashlib."""

import hashlib
import os
from typing import Protocol

from ..kernels.cpu.checked_file import IN_MEMORY, checksum_of_file, read_parts
from ..kernels.cpu.library import Library, Pool
from .block_memory import Parts

READ_BYTES = 1 << 20


class Checksum(Protocol):
    """A checksum of 128 bits that depends on the position of every byte. It detects accidents, not an adversary."""

    name: str

    def of(self, parts: Parts) -> bytes:
        """The checksum of what is in memory."""
        ...

    def read(self, parts: Parts, file: int, offset: int) -> bytes:
        """Fill the memory from the file; returns its checksum. Raises OSError if the file is short."""
        ...

    def of_file(self, file: int) -> bytes: ...


class KernelChecksum:
    """That of csrc/cpu/weights/checksum.h. Used by one thread."""

    name = "words"

    def __init__(self, library: Library):
        self._pool = Pool(library, [-1])  # the calling thread, which it does not pin

    def of(self, parts: Parts) -> bytes:
        return read_parts(self._pool, parts.addresses, parts.nbytes, IN_MEMORY, 0)

    def read(self, parts: Parts, file: int, offset: int) -> bytes:
        return read_parts(self._pool, parts.addresses, parts.nbytes, file, offset)

    def of_file(self, file: int) -> bytes:
        return bytes.fromhex(checksum_of_file(self._pool, file, os.fstat(file).st_size))


class HashChecksum:
    """BLAKE2b."""

    name = "blake2b"

    def of(self, parts: Parts) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for view in parts.views():
            found.update(view)
        return found.digest()

    def read(self, parts: Parts, file: int, offset: int) -> bytes:
        for view in parts.views():
            done = 0
            while done < len(view):
                if not (count := os.preadv(file, [view[done:]], offset)):
                    raise OSError(f"the file ends after {offset} bytes")
                done += count
                offset += count
        return self.of(parts)

    def of_file(self, file: int) -> bytes:
        found, at = hashlib.blake2b(digest_size=16), 0
        while part := os.pread(file, READ_BYTES, at):
            found.update(part)
            at += len(part)
        return found.digest()


def checksum(library: Library | None) -> Checksum:
    return HashChecksum() if library is None else KernelChecksum(library)
