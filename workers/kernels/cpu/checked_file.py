"""Reads parts of files on a pool's threads and computes their checksums; see csrc/cpu/weights/."""

import ctypes
import hashlib
import os

import torch
from torch import Tensor

from .library import Pool
from .parameters import ReadFileParams, ReadPartsParams, packer

CHUNK = 1 << 20
IN_MEMORY = -1
READ_FILE, READ_PARTS = packer(ReadFileParams), packer(ReadPartsParams)


def read_into(pool: Pool, tensor: Tensor, file: int, offset: int) -> str:
    """Fill contiguous `tensor` from `file` at `offset`; returns the checksum. Raises OSError if the file is short."""
    return _read(pool, file, offset, tensor.data_ptr(), tensor.nbytes)


def checksum_of(pool: Pool, tensor: Tensor) -> str:
    """The checksum of the bytes of contiguous `tensor`."""
    return _read(pool, IN_MEMORY, 0, tensor.data_ptr(), tensor.nbytes)


def checksum_of_file(pool: Pool, file: int, nbytes: int) -> str:
    return _read(pool, file, 0, 0, nbytes)


def read_parts(pool: Pool, addresses: Tensor, nbytes: Tensor, file: int, offset: int) -> bytes:
    """Fill pieces of memory, one after the other, from `file` at `offset`, on the calling thread.

    `addresses`, `nbytes`: int64 [pieces]; `file` IN_MEMORY: the bytes are there already. Returns the checksum of all
    bytes and their division into pieces. Raises OSError if the file is short.
    """
    sums, failure, count = torch.empty(len(nbytes), dtype=torch.int64), ctypes.c_int32(), len(nbytes)
    pointers = addresses.data_ptr(), nbytes.data_ptr(), sums.data_ptr(), ctypes.addressof(failure)
    pool.functions["read_parts"](pool.handle, READ_PARTS(*pointers, offset, count, file))
    if failure.value:
        raise OSError(failure.value, os.strerror(failure.value))
    return hashlib.blake2b(sums.numpy().tobytes(), digest_size=16).digest()


def _read(pool: Pool, file: int, offset: int, into: int, nbytes: int) -> str:
    sums, failure = torch.zeros(-(-nbytes // CHUNK), dtype=torch.int64), ctypes.c_int32()
    fields = READ_FILE(into, sums.data_ptr(), ctypes.addressof(failure), offset, nbytes, file)
    pool.functions["read_file"](pool.handle, fields)
    if failure.value:
        raise OSError(failure.value, os.strerror(failure.value))
    return hashlib.blake2b(sums.numpy().tobytes(), digest_size=16).hexdigest()
