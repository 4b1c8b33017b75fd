"""One copy from the host to the device for all the small arrays of a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes
DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


class Staging:
    """Arrays of one step packed end to end, copied at once, and given back as tensors on the device.

    Arrays of the same sizes lie at the same addresses in every step, which is what a CUDA graph needs, until a step
    takes more than `num_bytes` and the memory is made anew. A copy may still be under way when the next step is packed,
    so the host's side has one buffer for each step in flight; on the device steps follow each other, and one serves.
    """

    def __init__(self, device: str, num_bytes: int, steps_in_flight: int):
        self._device = device
        self._steps_in_flight = steps_in_flight
        self._turn = 0
        self._allocate(num_bytes)

    def put(self, arrays: Sequence[NDArray[np.integer[Any]]]) -> list[Tensor]:
        """The arrays on the device, valid until the next `put` but one in flight; the copy is on the current stream."""
        offsets = np.cumsum([0, *(_aligned(array.nbytes) for array in arrays)])
        if offsets[-1] > self._on_device.numel():
            self._allocate(2 * int(offsets[-1]))
        self._turn = (self._turn + 1) % self._steps_in_flight
        host = self._on_host[self._turn]
        bytes_of_host = host.numpy()
        for array, start in zip(arrays, offsets, strict=False):
            bytes_of_host[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8)
        used = slice(0, int(offsets[-1]))
        self._on_device[used].copy_(host[used], non_blocking=True)
        return [
            self._on_device[start : start + array.nbytes].view(DTYPES[array.dtype])
            for array, start in zip(arrays, offsets.tolist(), strict=False)
        ]

    def _allocate(self, num_bytes: int) -> None:
        pinned = self._device != "cpu"
        self._on_host = [
            torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(self._steps_in_flight)
        ]
        self._on_device = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)


class HostCopy:
    """Copies of tensors on their way to the host, of what is in them now; what is launched later is not waited for."""

    def __init__(self, *tensors: Tensor):
        self._copies = []
        for tensor in tensors:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies.append(copy.copy_(tensor, non_blocking=True))
        self._is_there = torch.cuda.current_stream().record_event() if tensors[0].is_cuda else None

    def wait(self) -> list[NDArray[Any]]:
        """The arrays, once they are there."""
        if self._is_there is not None:
            self._is_there.synchronize()
        return [copy.numpy() for copy in self._copies]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
