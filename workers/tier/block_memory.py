"""Where the bytes of a block are in the memory of the host: in the cache itself, or in a copy of what a device has."""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..kv.kv_cache import KVCache


class Parts:
    """Pieces of host memory that follow each other in a file."""

    def __init__(self, addresses: Tensor, nbytes: Tensor):
        """Both int64 [pieces]; the memory is kept alive by its owner."""
        self.addresses = addresses
        self.nbytes = nbytes

    @staticmethod
    def of(memory: Tensor) -> "Parts":
        """Contiguous `memory` as one piece."""
        return Parts(torch.tensor([memory.data_ptr()]), torch.tensor([memory.nbytes]))

    def views(self) -> list[memoryview]:
        """Each piece as writable bytes."""
        pieces = zip(self.addresses.tolist(), self.nbytes.tolist(), strict=True)
        return [memoryview((ctypes.c_ubyte * nbytes).from_address(address)) for address, nbytes in pieces]

    def clear(self) -> None:
        for address, nbytes in zip(self.addresses.tolist(), self.nbytes.tolist(), strict=True):
            ctypes.memset(address, 0, nbytes)


class BlockMemory(Protocol):
    """The bytes of blocks of the KV cache. Used by one thread; each thread has its own."""

    bytes_per_block: int

    def parts(self, block: int) -> Parts:
        """Memory for the bytes of this block, until the next call."""
        ...

    def gather(self, block: int) -> None:
        """Copy the block to its parts, if they are not its memory."""
        ...

    def scatter(self, block: int) -> None:
        """Copy its parts to the block, if they are not its memory."""
        ...


class HostBlocks:
    """Blocks in the memory of the host, which files are read into and written from."""

    def __init__(self, areas: Sequence[Tensor]):
        """`areas`: uint8 [num_blocks, bytes], whose rows together are all bytes of a block."""
        self._memory = areas  # kept alive
        self._starts = torch.tensor([area.data_ptr() for area in areas])
        self._nbytes = torch.tensor([area.shape[1] for area in areas])
        self.bytes_per_block = sum(area.shape[1] for area in areas)

    def parts(self, block: int) -> Parts:
        return Parts(self._starts + block * self._nbytes, self._nbytes)

    def gather(self, block: int) -> None:
        pass

    def scatter(self, block: int) -> None:
        pass


class DeviceBlocks:
    """Blocks in the memory of a CUDA device, copied on a stream of their own through pinned memory."""

    def __init__(self, areas: Sequence[Tensor]):
        self._areas = list(areas)
        self._stream = torch.cuda.Stream(areas[0].device)  # type: ignore[no-untyped-call]
        self.bytes_per_block = sum(area.shape[1] for area in areas)
        self._staging = torch.empty(self.bytes_per_block, dtype=torch.uint8, pin_memory=True)
        self._pieces = torch.split(self._staging, [area.shape[1] for area in areas])
        self._parts = Parts.of(self._staging)

    def parts(self, block: int) -> Parts:
        return self._parts

    def gather(self, block: int) -> None:
        with torch.cuda.stream(self._stream):
            for piece, area in zip(self._pieces, self._areas, strict=True):
                piece.copy_(area[block], non_blocking=True)
        self._stream.synchronize()

    def scatter(self, block: int) -> None:
        with torch.cuda.stream(self._stream):
            for piece, area in zip(self._pieces, self._areas, strict=True):
                area[block].copy_(piece, non_blocking=True)
        self._stream.synchronize()


def block_memory(cache: KVCache) -> BlockMemory:
    areas = [each.view(torch.uint8) for each in cache.blocks]
    return DeviceBlocks(areas) if areas[0].is_cuda else HostBlocks(areas)
