"""Small integers in the 32-bit words of checkpoints, lowest bits first."""

import torch
from torch import Tensor


def unpack_words(words: Tensor, bits: int, dim: int) -> Tensor:
    """int32 `words` [m, n] -> uint8, with 32 / bits values for each word along `dim`; bits is 4 or 8.

    Words are little-endian in the file and so in memory here; a byte holds two values of 4 bits, the low one first.
    """
    packed = words.contiguous() if dim == 1 else words.t().contiguous()
    values = packed.view(torch.uint8)
    if bits == 4:
        values = torch.stack([values & 15, values >> 4], dim=2).flatten(1)
    return values if dim == 1 else values.t()
