"""Quantizes rows to e4m3, one scale per row. csrc/cuda/quantize_rows.cu does the same to activations, bit for bit."""

import torch
from torch import Tensor

LARGEST = 448.0
LEAST_SCALE = 2.0**-126  # smaller scales are subnormal: their rounding would push codes past the largest


def fp8_scales(x: Tensor) -> Tensor:
    """The scales, [rows, in] -> [rows] float32, with which each row's largest element becomes LARGEST."""
    return (x.abs().amax(1).float() / LARGEST).clamp(min=LEAST_SCALE)


def fp8_codes(x: Tensor, scales: Tensor) -> Tensor:
    """`x` [rows, in] divided by `scales` [rows] and rounded to nearest even, as float8_e4m3fn."""
    return (x.float() / scales.unsqueeze(1)).to(torch.float8_e4m3fn)
