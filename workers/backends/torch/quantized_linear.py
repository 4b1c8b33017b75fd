"""Products with quantized weights in plain torch: the reference for the kernels, and the fallback without them.

Float sums are computed by the given `product`, which determines whether a row's bits depend on other rows.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ...checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from ...checkpoint.weight_forms import Fp8Weight, GroupedWeight, Int8Weight
from ...layers.linear import Product, linear

EXACT_INPUTS = 1024  # products of int8 codes that float32 adds exactly: 1024 * 128 * 127 < 2^24


class TorchInt8Linear:
    """W8A8: sums are exact integers, so the order of additions does not matter; results are scaled and rounded once."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None = None):
        self.weight = weight
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        codes, row_scales = quantize_rows(x)
        sums = exact_products(codes, self.weight.codes).float()
        y = sums * (row_scales.unsqueeze(1) * self.weight.scales)
        if self.bias is not None:
            y += self.bias.float()
        return y.to(x.dtype)


class TorchFp8Linear:
    """W8A8 with e4m3: products of codes are exact in float32 and added in float32; results are rounded once."""

    def __init__(self, weight: Fp8Weight, bias: Tensor | None = None, product: Product = linear):
        self.weight = weight
        self.bias = bias  # [out]
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        row_scales = fp8_scales(x)
        sums = self._product(fp8_codes(x, row_scales).float(), self.weight.codes.float(), None)
        y = sums * (row_scales.unsqueeze(1) * self.weight.scales)
        if self.bias is not None:
            y += self.bias.float()
        return y.to(x.dtype)


class TorchGroupedLinear:
    """Weight-only: a float product with the dequantized weights, rounded to the model's dtype.

    4-bit codes are stored in pairs and unpacked for each product, which saves memory but is slow.
    """

    def __init__(self, weight: GroupedWeight, bias: Tensor | None = None, product: Product = linear):
        self.weight = weight if weight.bits == 8 else replace(weight, codes=packed_pairs(weight.codes))
        self.bias = bias  # [out]
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.dequantized().to(x.dtype), self.bias)

    def dequantized(self) -> Tensor:
        """The values [out, in] float32."""
        weight = self.weight
        return (weight if weight.bits == 8 else replace(weight, codes=unpacked_pairs(weight.codes))).dequantized()


def packed_pairs(codes: Tensor) -> Tensor:
    """Pack uint8 codes below 16, [out, in] -> [out, in / 2]; the first code of a pair is in the low half."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpacked_pairs(pairs: Tensor) -> Tensor:
    """Undoes `packed_pairs`."""
    return torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows of `x` [rows, in] symmetrically to int8: codes as integral float32, and scales [rows] float32."""
    wide = x.float()
    peak = wide.abs().amax(1)
    inverse = torch.where(peak > 0, torch.tensor(127.0, device=x.device) / peak, 0.0)
    return (wide * inverse.unsqueeze(1)).round_(), peak / 127.0


def exact_products(codes: Tensor, weight: Tensor) -> Tensor:
    """`codes` [rows, in], with int8 values, times `weight` [out, in] int8 transposed: [rows, out] int32."""
    sums = torch.zeros(len(codes), len(weight), dtype=torch.int32, device=codes.device)
    for start in range(0, codes.shape[1], EXACT_INPUTS):
        at = slice(start, start + EXACT_INPUTS)
        sums += functional.linear(codes[:, at], weight[:, at].float()).to(torch.int32)
    return sums
