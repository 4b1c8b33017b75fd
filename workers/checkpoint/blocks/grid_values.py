"""Values of GGUF's IQ1, IQ2 and IQ3 formats, like those of dequantize.py: points of a grid, with signs and scales.

A scale is an odd number times d. All products of these numbers are exact in float32, so their order does not matter.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .bit_fields import BITS, NIBBLES, PAIRS, fields, half
from .grids import grid_of

TRIPLES = (0, 3, 6, 9)
SEVENS = (0, 7, 14, 21)
IQ2_NUMBERS = (8.0, 25.0, 43.0)
IQ3_XXS_NUMBERS = (4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0)
IQ3_S_NUMBERS = (1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0)
SHIFT = 0.125  # of the numbers of IQ1_S and IQ1_M, up or down


def _shifted(words: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Bit fields of `words` [blocks, words] int: [blocks, words * len(shifts)]."""
    return ((words.unsqueeze(2) >> torch.tensor(shifts)) & mask).flatten(1)


def _words(blocks: Tensor, first: int, past: int, dtype: torch.dtype) -> Tensor:
    """The words of `dtype` in bytes [first, past) of each block, as int64 without a sign."""
    words = blocks[:, first:past].clone(memory_format=torch.contiguous_format).view(dtype).long()
    return words & ((1 << 8 * dtype.itemsize) - 1)


def _signs(bits: Tensor) -> Tensor:
    """[blocks, bytes] integers of 8 bits -> [blocks, 8 * bytes] float32: -1 for each bit that is set, else 1."""
    return 1.0 - 2.0 * _shifted(bits.long(), BITS, 1).float()


def _eight_signs(seven: Tensor) -> Tensor:
    """The signs of integers of 7 bits; of all eight an even number is negative."""
    parity = _shifted(seven, BITS, 1).view(*seven.shape, 8).sum(2) & 1
    return _signs(seven | (parity << 7))


def _numbers(name: str, places: Tensor, numbers: tuple[float, ...]) -> Tensor:
    """The numbers of the points at `places` [blocks, points]: [blocks, 256]."""
    return torch.tensor(numbers)[grid_of(name).long()][places.long()].flatten(1)


def _grouped(values: Tensor, groups: int) -> Tensor:
    return values.view(len(values), groups, values.shape[1] // groups)


def _scaled(d: Tensor, scales: Tensor, factor: float, values: Tensor) -> Tensor:
    """`values` [blocks, 256] times d * (2 * scales + 1) * factor; `scales` [blocks, groups]."""
    steps = d * (2 * scales.float() + 1) * factor
    return (steps.unsqueeze(2) * _grouped(values, scales.shape[1])).flatten(1)


def _iq2_xxs(blocks: Tensor) -> Tensor:
    """d; of each 32 values four places, and a word of four times seven signs and a scale."""
    groups = _words(blocks, 2, 66, torch.int32)
    words, places = groups[:, 1::2], _shifted(groups[:, 0::2], (0, 8, 16, 24), 255)
    values = _numbers("IQ2_XXS", places, IQ2_NUMBERS) * _eight_signs(_shifted(words, SEVENS, 127))
    return _scaled(half(blocks, 0), words >> 28, 0.125, values)


def _iq2_xs(blocks: Tensor) -> Tensor:
    """d; words of a place in nine bits and seven signs; 16 scales of 4 bits."""
    words = _words(blocks, 2, 66, torch.int16)
    values = _numbers("IQ2_XS", words & 511, IQ2_NUMBERS) * _eight_signs(words >> 9)
    return _scaled(half(blocks, 0), fields(blocks[:, 66:], NIBBLES, 1, 15), 0.125, values)


def _iq2_s(blocks: Tensor) -> Tensor:
    """d; the low bytes of places, signs, the upper two bits of places; 16 scales of 4 bits."""
    places = blocks[:, 2:34].long() | fields(blocks[:, 66:74], PAIRS, 1, 3).long() << 8
    values = _numbers("IQ2_S", places, IQ2_NUMBERS) * _signs(blocks[:, 34:66])
    return _scaled(half(blocks, 0), fields(blocks[:, 74:], NIBBLES, 1, 15), 0.125, values)


def _iq3_xxs(blocks: Tensor) -> Tensor:
    """d; places; of each 32 values a word of four times seven signs and a scale."""
    words = _words(blocks, 66, 98, torch.int32)
    values = _numbers("IQ3_XXS", blocks[:, 2:66], IQ3_XXS_NUMBERS) * _eight_signs(_shifted(words, SEVENS, 127))
    return _scaled(half(blocks, 0), words >> 28, 0.25, values)


def _iq3_s(blocks: Tensor) -> Tensor:
    """d; the low bytes of places, their ninth bits, signs; 8 scales of 4 bits."""
    places = blocks[:, 2:66].long() | fields(blocks[:, 66:74], BITS, 1, 1).long() << 8
    values = _numbers("IQ3_S", places, IQ3_S_NUMBERS) * _signs(blocks[:, 74:106])
    return _scaled(half(blocks, 0), fields(blocks[:, 106:], NIBBLES, 1, 15), 1.0, values)


def _shifted_numbers(places: Tensor, is_lowered: Tensor) -> Tensor:
    numbers = _numbers("IQ1_S", places, (-1.0, 0.0, 1.0))
    shifts = SHIFT - 2 * SHIFT * is_lowered.float()
    return (_grouped(numbers, shifts.shape[1]) + shifts.unsqueeze(2)).flatten(1)


def _iq1_s(blocks: Tensor) -> Tensor:
    """d; the low bytes of places; of each 32 values four times three upper bits, a scale, and a shift's sign."""
    words = _words(blocks, 34, 50, torch.int16)
    places = blocks[:, 2:34].long() | _shifted(words, TRIPLES, 7) << 8
    return _scaled(half(blocks, 0), (words >> 12) & 7, 1.0, _shifted_numbers(places, words >> 15))


def _iq1_m(blocks: Tensor) -> Tensor:
    """The low bytes of places; nibbles of three upper bits and a shift's sign; words of four scales and 4 bits of d."""
    upper, words = fields(blocks[:, 32:48], NIBBLES, 1, 15).long(), _words(blocks, 48, 56, torch.int16)
    bits = ((words >> 12) << torch.tensor((0, 4, 8, 12))).sum(1, keepdim=True)
    d = bits.to(torch.int16).view(torch.float16).float()
    values = _shifted_numbers(blocks[:, :32].long() | (upper & 7) << 8, upper >> 3)
    return _scaled(d, _shifted(words, TRIPLES, 7), 1.0, values)


GRID_DEQUANTIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}
