"""One copy from the host to the device for all the small arrays of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes
DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}
MOST_LAYOUTS = 512  # of as many combinations of sizes; then all are cut anew

Kinds = tuple[tuple[str, int], ...]  # of each array its dtype and length


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where arrays of some sizes lie, cut once."""

    on_host: list[list[NDArray[np.integer[Any]]]]  # of each step in flight
    copies: list[tuple[Tensor, Tensor]]  # of each step in flight, from the host to the device; none on the host itself
    tensors: list[Tensor]  # on the device


class Staging:
    """Arrays of one step packed end to end, copied at once, and given back as tensors on the device.

    Arrays of the same sizes lie at the same addresses in every step, which is what a CUDA graph needs, until a step
    takes more than `num_bytes` and the memory is made anew. A copy may still be under way when the next step is packed,
    so the host's side has one buffer for each step in flight; on the device steps follow each other, and one serves.
    Where the device is the host, that one is all there is.
    """

    def __init__(self, device: str, num_bytes: int, steps_in_flight: int):
        self._device = device
        self._is_host = torch.device(device).type == "cpu"  # where a step is through before the next is packed
        self._steps_in_flight = steps_in_flight
        self._turn = 0
        self._allocate(num_bytes)

    def put(self, arrays: Sequence[NDArray[np.integer[Any]]]) -> list[Tensor]:
        """The arrays on the device, valid until the next `put` but one in flight; the copy is on the current stream."""
        kinds = tuple((array.dtype.char, len(array)) for array in arrays)
        layout = self._layouts.get(kinds) or self._lay_out(kinds, arrays)
        self._turn = (self._turn + 1) % self._steps_in_flight
        for array, place in zip(arrays, layout.on_host[self._turn], strict=True):
            place[:] = array
        if layout.copies:
            copy, used = layout.copies[self._turn]
            used.copy_(copy, non_blocking=True)
        return layout.tensors

    def _lay_out(self, kinds: Kinds, arrays: Sequence[NDArray[np.integer[Any]]]) -> "Layout":
        starts = [0, *accumulate(_aligned(array.nbytes) for array in arrays)]
        if starts[-1] > self._on_device.numel():
            self._allocate(2 * starts[-1])
        spans = [
            (slice(start, start + array.nbytes), array.dtype) for array, start in zip(arrays, starts, strict=False)
        ]
        used = slice(0, starts[-1])
        layout = Layout(
            [[host.numpy()[span].view(dtype) for span, dtype in spans] for host in self._on_host],
            [] if self._is_host else [(host[used], self._on_device[used]) for host in self._on_host],
            [self._on_device[span].view(DTYPES[dtype]) for span, dtype in spans],
        )
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[kinds] = layout
        return layout

    def _allocate(self, num_bytes: int) -> None:
        self._layouts: dict[Kinds, Layout] = {}
        self._on_device = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._on_host = [
            self._on_device if self._is_host else torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
            for _ in range(self._steps_in_flight)
        ]


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
