"""Unpacks small integers from the 32-bit words of checkpoints, lowest bits first."""

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.safetensors_files import Checkpoint
from ...kernels.cpu.library import Pool
from ...kernels.cpu.unpacking import WordLayout, unpack_codes

WORD_BITS = 32
AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]  # output i of an AWQ word is in nibble AWQ_NIBBLES[i]


def read_codes(
    checkpoint: Checkpoint,
    pool: Pool | None,
    tensor: str,
    part: MatrixPart,
    layout: WordLayout,
    bits: int,
    order: Tensor | None,
) -> Tensor:
    """The codes of `part`, uint8 [out, in] with columns in `order`, from words in either layout."""
    per_word, (outputs, inputs) = WORD_BITS // bits, part.shape
    shape, across = (outputs, -(-inputs // per_word)), 0
    if layout is WordLayout.DOWN_INPUTS:
        shape, across = shape[::-1], 1
    if part.dim == 0:
        words = checkpoint.read(tensor, shape, across, part.start, part.stop, ("I32",))
        return codes_of(pool, words, layout, bits, (part.stop - part.start, inputs), 0, order)
    first, last = part.start // per_word, -(-part.stop // per_word)
    words = checkpoint.read(tensor, shape, 1 - across, first, last, ("I32",))
    return codes_of(pool, words, layout, bits, (outputs, part.stop - part.start), part.start - first * per_word, order)


def codes_of(
    pool: Pool | None,
    words: Tensor,
    layout: WordLayout,
    bits: int,
    shape: tuple[int, int],
    first: int = 0,
    order: Tensor | None = None,
) -> Tensor:
    """Unpack codes to uint8 [outputs, inputs], like unpack_codes; torch does it if there is no pool."""
    if pool is not None:
        return unpack_codes(pool, words, layout, bits, shape, first, order)
    outputs, inputs = shape
    match layout:
        case WordLayout.ALONG_INPUTS:
            codes = unpack_words(words, bits, dim=1)[:, first : first + inputs]
        case WordLayout.DOWN_INPUTS:
            codes = unpack_words(words, bits, dim=0)[first : first + inputs].t()
        case WordLayout.AWQ:
            codes = in_awq_order(words)[:, first : first + outputs].t()
    return (codes if order is None else codes[:, order]).contiguous()


def in_awq_order(words: Tensor) -> Tensor:
    """Unpack AWQ words: int32 [m, n] -> uint8 [m, 8 * n], outputs in ascending order."""
    values = unpack_words(words, 4, dim=1)
    return values.view(len(values), -1, len(AWQ_NIBBLES))[:, :, AWQ_NIBBLES].flatten(1)


def unpack_words(words: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack int32 `words` [m, n] to uint8, 32 / bits values for each word along `dim`; bits is 4 or 8.

    Words are little-endian in the file and in memory; a byte holds two values of 4 bits, the low one first.
    """
    packed = words.contiguous() if dim == 1 else words.t().clone(memory_format=torch.contiguous_format)
    values = packed.view(torch.uint8)
    if bits == 4:
        values = torch.stack([values & 15, values >> 4], dim=2).flatten(1)
    return values if dim == 1 else values.t()
