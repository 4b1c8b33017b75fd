"""Root-mean-square normalisation."""

import torch
from torch import Tensor


class RMSNorm:
    """Scales each vector to unit mean square, then by `weight`; in float32, rounded once."""

    def __init__(self, weight: Tensor, eps: float):
        self.weight = weight.float()  # [size]
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps)).mul_(self.weight).to(x.dtype)
