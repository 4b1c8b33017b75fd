"""RMS and layer normalisation, in torch."""

import torch
from torch import Tensor


class RMSNorm:
    """Scales each vector to unit mean square and multiplies it by `weight`, in float32, rounded once."""

    is_centred, bias = False, None

    def __init__(self, weight: Tensor, eps: float):
        self.weight = weight.float()  # [size], or [heads, size] if the weights differ by head
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps)).mul_(self.weight).to(x.dtype)


class LayerNorm:
    """Normalises each vector to mean 0 and variance 1, times `weight`, plus `bias`, in float32, rounded once."""

    is_centred = True

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float):
        self.weight = weight.float()  # [size], or [heads, size] if the weights differ by head
        self.bias = None if bias is None else bias.float()  # likewise
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        scaled = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)).mul_(self.weight)
        return (scaled if self.bias is None else scaled.add_(self.bias)).to(x.dtype)


Norm = RMSNorm | LayerNorm


def weight_of(norm: Norm | None) -> Tensor | None:
    return None if norm is None else norm.weight


def bias_of(norm: Norm | None) -> Tensor | None:
    return None if norm is None else norm.bias
