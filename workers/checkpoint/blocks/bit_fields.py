"""The numbers in GGUF's blocks, [blocks, bytes] uint8: floats of 16 bits, and integers of a few bits."""

import torch
from torch import Tensor

NIBBLES = (0, 4)
PAIRS = (0, 2, 4, 6)
BITS = (0, 1, 2, 3, 4, 5, 6, 7)


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block: [blocks, 1] float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def fields(packed: Tensor, shifts: tuple[int, ...], width: int, mask: int) -> Tensor:
    """Bit fields of `packed` [blocks, bytes]: of each run of `width` bytes first those at shifts[0], then shifts[1] …

    Returns [blocks, bytes * len(shifts)] uint8.
    """
    runs = packed.reshape(len(packed), packed.shape[1] // width, 1, width)
    by = torch.tensor(shifts, dtype=torch.uint8).view(1, 1, -1, 1)
    return ((runs >> by) & mask).flatten(1)
