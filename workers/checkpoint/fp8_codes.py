"""Rows as e4m3 with a scale each. csrc/cuda/quantize_rows.cu does the same to activations, to the bit."""

import torch
from torch import Tensor

LARGEST = 448.0
LEAST_SCALE = 2.0**-126  # smaller ones would be rounded themselves, and push codes past the largest


def fp8_scales(x: Tensor) -> Tensor:
    """[rows, in] -> [rows] float32: of each row its largest element is LARGEST."""
    return (x.abs().amax(1).float() / LARGEST).clamp(min=LEAST_SCALE)


def fp8_codes(x: Tensor, scales: Tensor) -> Tensor:
    """`x` [rows, in] in units of `scales` [rows], to nearest even, as float8_e4m3fn."""
    return (x.float() / scales.unsqueeze(1)).to(torch.float8_e4m3fn)
