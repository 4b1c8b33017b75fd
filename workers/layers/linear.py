"""Matrix products whose rows keep their bits whatever travels beside them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..tensor_parallel import TensorParallelGroup

SMALL_PRODUCT = 16**3  # rows * in * out up to which the CPU's half-precision product takes another kernel
ROWS_MULTIPLE = 4  # below it the CPU's float32 product takes another kernel, which adds in another order
OUTPUTS_MULTIPLE = 16  # outputs past a multiple of it, in float32, depend on how many threads share the product


class Linear(Protocol):
    """One matrix product, its weights held as its kernel wants them."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]; a row's bits depend on that row alone. Valid until the next call of any Linear."""
        ...


class TorchLinear:
    """The Linear of plain torch, on any device: the reference, and what serves where there is no kernel."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class JoinedLinear:
    """Several products of one input whose weights cannot be one matrix; their outputs side by side."""

    def __init__(self, parts: Sequence[Linear]):
        self.parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).clone() for part in self.parts], dim=1)


class RowParallelLinear:
    """Each rank's Linear holds a share of the inputs; the ranks' products are summed."""

    def __init__(self, share: Linear, bias: Tensor | None, group: TensorParallelGroup):
        self.share = share  # [rows, in_of_this_rank] -> [rows, out], no bias
        self.bias = bias  # [out], whole on every rank, added once after the sum
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        summed = self._group.all_reduce(self.share(x))
        return summed if self.bias is None else summed + self.bias


def padded_rows(num_rows: int) -> int:
    """The least number of rows, at least `num_rows`, at which float32 products add in their usual order."""
    return -(-num_rows // ROWS_MULTIPLE) * ROWS_MULTIPLE


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [rows, in] times `weight` [out, in] transposed, plus `bias` [out]; a row's bits depend on that row alone.

    bfloat16 and float16 products have one order of addition for every number of rows, but for small ones; float32 has
    from four rows on, so fewer, or a rest that threads would share unevenly, are padded. tests/workers/
    test_invariance.py guards both.
    """
    num_rows = x.shape[0]
    least = SMALL_PRODUCT // weight.numel() + 1
    wanted = padded_rows(num_rows) if x.dtype == torch.float32 else max(num_rows, least)
    if wanted == num_rows:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, wanted - num_rows))
    return functional.linear(padded, weight, bias)[:num_rows]
