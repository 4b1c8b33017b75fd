"""Unpacks 32-bit words of quantized checkpoints on a pool's threads; see csrc/cpu/weights/unpack_codes.cpp."""

from enum import IntEnum

import torch
from torch import Tensor

from ...distributed.huge_pages import allocate
from .library import Pool
from .parameters import UnpackCodesParams, packer, pointer

UNPACK_CODES = packer(UnpackCodesParams)


class WordLayout(IntEnum):
    """The direction in which the values of a word are adjacent, and the order of words."""

    ALONG_INPUTS = 0  # [outputs, words]: compressed-tensors
    DOWN_INPUTS = 1  # [words, outputs]: GPTQ
    AWQ = 2  # [inputs, words] with 4-bit values of adjacent outputs, in AWQ's order


def unpack_codes(
    pool: Pool,
    words: Tensor,
    layout: WordLayout,
    bits: int,
    shape: tuple[int, int],
    first: int = 0,
    order: Tensor | None = None,
) -> Tensor:
    """Unpack int32 `words` to uint8 [outputs, inputs] of `shape`, skipping the first `first` values.

    `bits` is 4 or 8. Column j holds input `order[j]`, or input j if there is no order, as with AWQ.
    """
    assert words.dtype == torch.int32
    assert layout != WordLayout.AWQ or (bits == 4 and order is None)
    if words.stride(1) != 1:
        words = words.contiguous()
    if order is not None:
        order = order.to(torch.int64).contiguous()
    codes = allocate(shape, torch.uint8)
    pointers = codes.data_ptr(), words.data_ptr(), pointer(order)
    fields = UNPACK_CODES(*pointers, words.stride(0), *shape, first, bits, layout)
    pool.functions["unpack_codes"](pool.handle, fields)
    return codes
