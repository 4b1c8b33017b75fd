"""Checksums of blocks while they are read and written: with the CPU kernels several GB/s, without them hashlib."""

import hashlib
import os
from typing import Protocol

from torch import Tensor

from ..kernels.cpu.checked_file import checksum_of, checksum_of_file, read_into
from ..kernels.cpu.library import Library, Pool

READ_BYTES = 1 << 20


class Checksum(Protocol):
    """A checksum of 128 bits that depends on the position of every byte. It detects accidents, not an adversary."""

    name: str

    def of(self, memory: Tensor) -> bytes:
        """The checksum of uint8 `memory`."""
        ...

    def read(self, memory: Tensor, file: int, offset: int) -> bytes:
        """Fill `memory` from the file; returns its checksum. Raises OSError if the file is short."""
        ...

    def of_file(self, file: int) -> bytes: ...


class KernelChecksum:
    """That of csrc/cpu/weights/read_file.cpp. Used by one thread."""

    name = "words"

    def __init__(self, library: Library):
        self._pool = Pool(library, [-1])  # the calling thread, which it does not pin

    def of(self, memory: Tensor) -> bytes:
        return bytes.fromhex(checksum_of(self._pool, memory))

    def read(self, memory: Tensor, file: int, offset: int) -> bytes:
        return bytes.fromhex(read_into(self._pool, memory, file, offset))

    def of_file(self, file: int) -> bytes:
        return bytes.fromhex(checksum_of_file(self._pool, file, os.fstat(file).st_size))


class HashChecksum:
    """BLAKE2b."""

    name = "blake2b"

    def of(self, memory: Tensor) -> bytes:
        return hashlib.blake2b(memory.numpy().data, digest_size=16).digest()

    def read(self, memory: Tensor, file: int, offset: int) -> bytes:
        view, done = memoryview(memory.numpy().data), 0
        while done < len(view):
            if not (count := os.preadv(file, [view[done:]], offset + done)):
                raise OSError(f"the file ends after {offset + done} bytes")
            done += count
        return self.of(memory)

    def of_file(self, file: int) -> bytes:
        found, at = hashlib.blake2b(digest_size=16), 0
        while part := os.pread(file, READ_BYTES, at):
            found.update(part)
            at += len(part)
        return found.digest()


def checksum(library: Library | None) -> Checksum:
    return HashChecksum() if library is None else KernelChecksum(library)
