"""Products of e4m3 weights and activations by torch, on CUDA devices from sm_89.

They compute PRODUCT_ROWS rows at a time, with the guarantee and the cost of fixed_rows.py. Rows are quantized
independently.
"""

import torch
from torch import Tensor

from ....checkpoint.weight_forms import Fp8Weight
from ....kernels.cuda.kernel import Launcher
from ....kernels.cuda.quantize import quantize_rows
from .fixed_rows import PRODUCT_ROWS, round_up_product_rows

SIZES_MULTIPLE = 16  # of inputs and outputs, required by the library


class Fp8Linear:
    """W8A8: one scale per token and per output, sums in float32, rounded once to bfloat16."""

    def __init__(self, launcher: Launcher, weight: Fp8Weight, bias: Tensor | None = None):
        self.weight = weight
        self.bias = bias  # [out]
        self._launcher = launcher
        self._scales = weight.scales.unsqueeze(0)

    def __call__(self, x: Tensor) -> Tensor:
        (outputs, inputs), rows = self.weight.shape, round_up_product_rows(len(x))
        codes = torch.empty((rows, inputs), dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
        quantize_rows(self._launcher, x, codes[: len(x)], scales[: len(x)])
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        for start in range(0, rows, PRODUCT_ROWS):
            part = slice(start, start + PRODUCT_ROWS)
            torch._scaled_mm(
                codes[part],
                self.weight.codes.t(),
                scales[part],
                self._scales,
                bias=self.bias,
                out_dtype=x.dtype,
                out=out[part],
            )
        return out[: len(x)]


def multiplies(weight: Fp8Weight) -> bool:
    return all(size % SIZES_MULTIPLE == 0 for size in weight.shape)
