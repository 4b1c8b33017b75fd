"""Which weights in fp8 the kernels multiply in their own codes."""

import torch

from ....checkpoint.blocks.fp8_codes import are_numbers
from ....checkpoint.weight_forms import Fp8BlockWeight, Fp8Weight
from ....kernels.cpu.packing import WORD_INPUTS

# With scales in this range, or zero, codes times scales are neither denormal nor infinite in bfloat16.
LEAST_SCALE, LARGEST_SCALE = 2.0**-117, 2.0**118


def is_fp8_product(weight: Fp8Weight | Fp8BlockWeight, dtype: torch.dtype) -> bool:
    """Whether there is a product in a model of `dtype` with the bits of the dequantized weight's.

    Other weights are dequantized, and refused by name if they hold no numbers.
    """
    groups = 1 if isinstance(weight, Fp8Weight) else weight.scales.shape[1]
    inputs, sizes = weight.shape[1], weight.scales.abs()
    if dtype != torch.bfloat16 or inputs % (groups * WORD_INPUTS):
        return False
    if not bool(((sizes == 0) | ((sizes >= LEAST_SCALE) & (sizes <= LARGEST_SCALE))).all()):
        return False
    return are_numbers(weight.codes)
