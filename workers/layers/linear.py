"""Matrix products: the protocol of all backends, and products by torch."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..distributed.tensor_parallel import TensorParallelGroup

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x [rows, in], weight [out, in], bias [out] or None


class Linear(Protocol):
    """One matrix product, with its weights in the layout of its kernel."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]; a row's bits depend only on that row. Valid until the next call of any Linear."""
        ...


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply all rows in one call of torch; whether a row's bits depend on the other rows varies by processor."""
    return functional.linear(x, weight, bias)


class TorchLinear:
    """The Linear of plain torch, on any device. `product` determines whether a row's bits depend on other rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, product: Product = linear):
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.weight, self.bias)


class JoinedLinear:
    """Several products of one input whose weights cannot be joined in one matrix; their outputs are concatenated."""

    def __init__(self, parts: Sequence[Linear]):
        self.parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).clone() for part in self.parts], dim=1)


class RowParallelLinear:
    """Each rank's Linear holds a share of the inputs; the ranks' products are summed."""

    def __init__(self, share: Linear, bias: Tensor | None, group: TensorParallelGroup):
        self.share = share  # [rows, in_of_this_rank] -> [rows, out], no bias
        self.bias = bias  # [out], complete on every rank, added once after the sum
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        summed = self._group.all_reduce(self.share(x))
        return summed if self.bias is None else summed + self.bias
