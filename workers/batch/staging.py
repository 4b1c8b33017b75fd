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
MAX_LAYOUTS = 512  # layouts kept; beyond this number all are discarded

Kinds = tuple[tuple[str, int], ...]  # (dtype, length) of each array


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of arrays of given sizes in the buffers, computed once."""

    on_host: list[list[NDArray[np.integer[Any]]]]  # for each step in flight
    copies: list[tuple[Tensor, Tensor]]  # for each step in flight: (host, device); empty if the device is the host
    tensors: list[Tensor]  # on the device


class Staging:
    """Packs the arrays of one step, copies them with one call, and returns them as tensors on the device.

    Arrays of the same sizes have the same addresses in every step, as CUDA graphs require, until a step needs more
    than `num_bytes` and the memory is reallocated. A copy may be in progress when the next step is packed, so the host
    has a buffer for each step in flight. Steps run one after another on the device, so it needs only one buffer. If
    the device is the host, that buffer is the only one.
    """

    def __init__(self, device: str, num_bytes: int, steps_in_flight: int):
        self._device = device
        self._is_host = torch.device(device).type == "cpu"  # a step is complete before the next one is packed
        self._steps_in_flight = steps_in_flight
        self._turn = 0
        self._allocate(num_bytes)

    def put(self, arrays: Sequence[NDArray[np.integer[Any]]]) -> list[Tensor]:
        """The arrays on the device; the copy is on the current stream. Later steps on the stream overwrite them."""
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
        if len(self._layouts) >= MAX_LAYOUTS:
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
    """Starts copies of tensors to the host; `wait` waits for the copies only, not for work that is launched later."""

    def __init__(self, *tensors: Tensor):
        self._copies = []
        for tensor in tensors:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies.append(copy.copy_(tensor, non_blocking=True))
        self._is_there = torch.cuda.current_stream().record_event() if tensors[0].is_cuda else None

    def wait(self) -> list[NDArray[Any]]:
        """Wait for the copies and return them."""
        if self._is_there is not None:
            self._is_there.synchronize()
        return [copy.numpy() for copy in self._copies]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
