"""A block's bytes, wherever its layers keep them, to and from one piece of host memory."""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..kv.kv_cache import KVCache


class BlockMemory(Protocol):
    """Copies blocks between the KV cache and `staging`, uint8 [bytes_per_block] on the host.

    Used by one thread; each thread has its own.
    """

    staging: Tensor

    def gather(self, block: int) -> None:
        """Copy the block to `staging`."""
        ...

    def scatter(self, block: int) -> None:
        """Copy `staging` to the block."""
        ...


class HostBlocks:
    """Blocks in the memory of the host."""

    def __init__(self, areas: Sequence[Tensor]):
        """`areas`: uint8 [num_blocks, bytes], whose rows together are all bytes of a block."""
        self._areas = [(area.data_ptr(), area.shape[1]) for area in areas]
        self._memory = areas  # kept alive
        self.staging = torch.empty(sum(nbytes for _, nbytes in self._areas), dtype=torch.uint8)

    def gather(self, block: int) -> None:
        at = self.staging.data_ptr()
        for address, nbytes in self._areas:
            ctypes.memmove(at, address + block * nbytes, nbytes)
            at += nbytes

    def scatter(self, block: int) -> None:
        at = self.staging.data_ptr()
        for address, nbytes in self._areas:
            ctypes.memmove(address + block * nbytes, at, nbytes)
            at += nbytes


class DeviceBlocks:
    """Blocks in the memory of a CUDA device, copied on a stream of their own through pinned memory."""

    def __init__(self, areas: Sequence[Tensor]):
        self._areas = list(areas)
        self._stream = torch.cuda.Stream(areas[0].device)  # type: ignore[no-untyped-call]
        self.staging = torch.empty(sum(area.shape[1] for area in areas), dtype=torch.uint8, pin_memory=True)
        self._parts = torch.split(self.staging, [area.shape[1] for area in areas])

    def gather(self, block: int) -> None:
        with torch.cuda.stream(self._stream):
            for part, area in zip(self._parts, self._areas, strict=True):
                part.copy_(area[block], non_blocking=True)
        self._stream.synchronize()

    def scatter(self, block: int) -> None:
        with torch.cuda.stream(self._stream):
            for part, area in zip(self._parts, self._areas, strict=True):
                area[block].copy_(part, non_blocking=True)
        self._stream.synchronize()


def block_memory(cache: KVCache) -> BlockMemory:
    areas = [each.view(torch.uint8) for each in cache.blocks]
    return DeviceBlocks(areas) if areas[0].is_cuda else HostBlocks(areas)
