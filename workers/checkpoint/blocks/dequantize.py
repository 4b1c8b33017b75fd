"""Values of GGUF's block formats: [blocks, bytes] uint8 -> [blocks, elements] float32.

Layouts are those of ggml-common.h. Each value is computed by the operations of the gguf package in their order, in
float32, so it has the same bits. `d` and `dmin` are float16 scales of a block; K-quants have integer scales of 16 or
32 elements besides.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .bit_fields import BITS, NIBBLES, PAIRS, fields, half
from .grid_values import GRID_DEQUANTIZERS

# 4-bit floats times 2, by their code
E2M1_TWICE = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
# The numbers of IQ4_NL and IQ4_XS, by their code
IQ4_NUMBERS = tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)))
NO_NUMBER = 0x7F  # a code of e4m3
CENTRE_4, CENTRE_5, CENTRE_6 = 8, 16, 32  # codes of zero


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """32 bits from byte `at` on, the first in the lowest: [blocks, 32] uint8, 0 or 16."""
    each = torch.tensor(BITS, dtype=torch.uint8)
    return (((blocks[:, at : at + 4].unsqueeze(2) >> each) & 1) << 4).flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (fields(blocks[:, 2:18], NIBBLES, 16, 15).float() - CENTRE_4)


def _q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * fields(blocks[:, 4:20], NIBBLES, 16, 15).float() + half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    codes = fields(blocks[:, 6:22], NIBBLES, 16, 15) | _fifth_bits(blocks, 2)
    return half(blocks, 0) * (codes.float() - CENTRE_5)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = fields(blocks[:, 8:24], NIBBLES, 16, 15) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes.float() + half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:34].contiguous().view(torch.int8).float() * half(blocks, 0)


def _q2_k(blocks: Tensor) -> Tensor:
    """16 scales and minimums of 4 bits, 256 codes of 2 bits, d, dmin."""
    scales, codes = blocks[:, :16], fields(blocks[:, 16:80], PAIRS, 32, 3).float()
    steps, least = half(blocks, 80) * (scales & 15).float(), half(blocks, 82) * (scales >> 4).float()
    return (steps.unsqueeze(2) * codes.view(-1, 16, 16) - least.unsqueeze(2)).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    """Highest bits (inverted), 256 codes of 2 bits, 16 scales of 6 bits, d."""
    high = fields(blocks[:, :32], BITS, 32, 1) ^ 1
    codes = fields(blocks[:, 32:96], PAIRS, 32, 3).float() - (high << 2).float()
    low, upper = fields(blocks[:, 96:104], NIBBLES, 8, 15), fields(blocks[:, 104:108], PAIRS, 4, 3)
    steps = half(blocks, 108) * ((low | (upper << 4)).float() - CENTRE_6)
    return (steps.unsqueeze(2) * codes.view(-1, 16, 16)).flatten(1)


def _scales_and_minimums(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and minimums of 6 bits in bytes 4 to 15 of Q4_K and Q5_K, times d and dmin: [blocks, 8, 1]."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 2) & 48)], 1)
    least = torch.cat([second & 63, (rest >> 4) | ((second >> 2) & 48)], 1)
    return (half(blocks, 0) * scales.float()).unsqueeze(2), (half(blocks, 2) * least.float()).unsqueeze(2)


def _q4_k(blocks: Tensor) -> Tensor:
    steps, least = _scales_and_minimums(blocks)
    codes = fields(blocks[:, 16:144], NIBBLES, 32, 15).float()
    return (steps * codes.view(-1, 8, 32) - least).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    steps, least = _scales_and_minimums(blocks)
    high = fields(blocks[:, 16:48], BITS, 32, 1)
    codes = (fields(blocks[:, 48:176], NIBBLES, 32, 15) | (high << 4)).float()
    return (steps * codes.view(-1, 8, 32) - least).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """256 codes, the low 4 bits of all, then the high 2 bits; 16 scales of int8; d."""
    low, high = fields(blocks[:, :128], NIBBLES, 64, 15), fields(blocks[:, 128:192], PAIRS, 32, 3)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    steps = (half(blocks, 208) * scales).unsqueeze(2)
    codes = (low | (high << 4)).float() - CENTRE_6
    return (steps * codes.view(-1, 16, 16)).flatten(1)


def _iq4_nl(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * torch.tensor(IQ4_NUMBERS)[fields(blocks[:, 2:18], NIBBLES, 16, 15).long()]


def _iq4_xs(blocks: Tensor) -> Tensor:
    """d; the high 2 bits of 8 scales, their low 4 bits; 256 codes of 4 bits."""
    low, high = fields(blocks[:, 4:8], NIBBLES, 1, 15), fields(blocks[:, 2:4], PAIRS, 1, 3)
    steps = half(blocks, 0) * ((low | (high << 4)).float() - CENTRE_6)
    numbers = torch.tensor(IQ4_NUMBERS)[fields(blocks[:, 8:], NIBBLES, 16, 15).long()]
    return (steps.unsqueeze(2) * numbers.view(-1, 8, 32)).flatten(1)


def _tq2_0(blocks: Tensor) -> Tensor:
    return half(blocks, 64) * (fields(blocks[:, :64], PAIRS, 32, 3).float() - 1)


def _tq1_0(blocks: Tensor) -> Tensor:
    """Five codes of -1, 0 and 1 in a byte, four in the last four bytes. Bytes are fractions, with codes as digits."""
    codes = []
    for first, past, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = torch.tensor([3**digit for digit in range(digits)]).view(1, -1, 1)
        codes.append(((blocks[:, None, first:past].long() * powers & 255) * 3 >> 8).flatten(1))
    return half(blocks, 52) * (torch.cat(codes, 1).float() - 1)


def codes_of_mxfp4(blocks: Tensor) -> Tensor:
    """[blocks, 32] uint8, floats of 4 bits (e2m1): the first 16 in the low halves of the bytes."""
    return fields(blocks[:, 1:17], NIBBLES, 16, 15)


def scales_of_mxfp4(blocks: Tensor) -> Tensor:
    """[blocks, 1] float32: a power of two, as the exponent of a float plus 127, halved, because codes are doubled."""
    exponents = blocks[:, :1].int()
    halved = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return halved.view(torch.float32)


def _mxfp4(blocks: Tensor) -> Tensor:
    return scales_of_mxfp4(blocks) * torch.tensor(E2M1_TWICE)[codes_of_mxfp4(blocks).long()]


def codes_of_nvfp4(blocks: Tensor) -> Tensor:
    """[blocks, 64] uint8, floats of 4 bits (e2m1): of each 16, the first 8 in the low halves of 8 bytes."""
    return fields(blocks[:, 4:36], NIBBLES, 8, 15)


def scales_of_nvfp4(blocks: Tensor) -> Tensor:
    """[blocks, 4] float32: of each 16 codes, a number in e4m3 without its sign, halved, because codes are doubled."""
    stored = blocks[:, :4].int()
    exponents, fractions = (stored >> 3) & 15, stored & 7
    scales = torch.ldexp((fractions + 8 * (exponents > 0)).float(), exponents.clamp(min=1) - 11)
    return torch.where(stored == NO_NUMBER, 0.0, scales)


def _nvfp4(blocks: Tensor) -> Tensor:
    values = torch.tensor(E2M1_TWICE)[codes_of_nvfp4(blocks).long()]
    return (scales_of_nvfp4(blocks).unsqueeze(2) * values.view(-1, 4, 16)).flatten(1)


DEQUANTIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ2_0": _tq2_0,
    "TQ1_0": _tq1_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    **GRID_DEQUANTIZERS,
}
