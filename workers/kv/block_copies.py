"""Copies of whole blocks of the paged cache, which let a row continue within another row's block."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_WIDEST_FIRST = (torch.int64, torch.int32, torch.int16, torch.uint8)


def whole_blocks(num_blocks: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The distinct ones of `tensors`, [num_blocks, ...] each, as [num_blocks, integers of up to 8 bytes]."""
    distinct = {tensor.data_ptr(): tensor for tensor in tensors if tensor.numel()}
    flat = [tensor.view(num_blocks, -1).view(torch.uint8) for tensor in distinct.values()]
    return [each.view(next(dtype for dtype in _WIDEST_FIRST if each.shape[1] % dtype.itemsize == 0)) for each in flat]


def copy_blocks(blocks: Sequence[Tensor], pairs: bytes) -> None:
    """Copy between the blocks of each of these tensors, of `whole_blocks`, on the device's current stream.

    `pairs`: int32, source and destination of each copy. No source is a destination.
    """
    sources, destinations = np.frombuffer(pairs, "<i4").astype(np.int64).reshape(-1, 2).T.copy()
    if not blocks or blocks[0].device.type == "cpu":
        for tensor in blocks:
            of_host = tensor.numpy()
            of_host[destinations] = of_host[sources]  # one memcpy for each block, unlike torch's indexing
        return
    device = blocks[0].device
    of_device = [torch.from_numpy(numbers).to(device, non_blocking=True) for numbers in (sources, destinations)]
    for tensor in blocks:
        tensor.index_copy_(0, of_device[1], tensor.index_select(0, of_device[0]))
