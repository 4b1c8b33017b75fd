"""Codes of e4m3. csrc/cuda/quantize_rows.cu quantizes rows of activations in the same way, bit for bit."""

import torch
from torch import Tensor

LARGEST = 448.0
NO_NUMBERS = 0x7F, 0xFF  # the codes of NaN
LEAST_SCALE = 2.0**-126  # smaller scales are subnormal: their rounding would push codes past the largest


def fp8_scales(x: Tensor) -> Tensor:
    """The scales, [rows, in] -> [rows] float32, with which each row's largest element becomes LARGEST."""
    return (x.abs().amax(1).float() / LARGEST).clamp(min=LEAST_SCALE)


def fp8_codes(x: Tensor, scales: Tensor) -> Tensor:
    """`x` [rows, in] divided by `scales` [rows] and rounded to nearest even, as float8_e4m3fn."""
    return (x.float() / scales.unsqueeze(1)).to(torch.float8_e4m3fn)


def are_numbers(codes: Tensor) -> bool:
    """Whether no code in `codes` float8_e4m3fn is a NaN."""
    if not codes.numel():
        return True
    highest = int(codes.view(torch.int8).max()), int(codes.view(torch.uint8).max())  # as signed, 0xff is -1
    return highest[0] != NO_NUMBERS[0] and highest[1] != NO_NUMBERS[1]
