"""Makes torch behave as on some processors, where the order of additions in a product depends on the number of rows.

With AMX, for example, the library chooses a kernel by the number of rows. Tests must not pass only because plain torch
happens to be invariant on the processor that runs them. A single row, and a batch of products of one shape, are added
in the same order everywhere.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def row_variant_torch() -> Iterator[None]:
    """Inside this context, torch's float products on the CPU add their inputs in an order that depends on the shape."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "mm"), (torch, "bmm"), (torch, "matmul"), (torch.Tensor, "matmul")):
            patch.setattr(owner, name, _reordering(getattr(owner, name)))
        patch.setattr(torch.Tensor, "__matmul__", torch.matmul)
        patch.setattr(torch, "addmm", _reordering(torch.addmm, first=1))
        linear = functional.linear
        patch.setattr(functional, "linear", lambda x, weight, bias=None: linear(*_reordered(x, weight, -1), bias))
        yield


def _reordering(product: Callable[..., Any], first: int = 0) -> Callable[..., Any]:
    """Wrap `product`, whose operands [..., m, k] and [..., k, n] are its arguments from `first` on."""

    def reordering(*operands: Tensor, **options: Any) -> Any:
        x, y = operands[first : first + 2]
        return product(*operands[:first], *_reordered(x, y, -2), *operands[first + 2 :], **options)

    return reordering


def _reordered(x: Tensor, y: Tensor, inputs_of_y: int) -> tuple[Tensor, Tensor]:
    """Both operands with their inputs in another order, unless there is a single row."""
    rows = x.shape[:-1].numel()
    if rows <= 1 or y.dim() < 2 or not (x.is_floating_point() and x.device.type == "cpu"):
        return x, y
    order = _order(x.shape[-1], (*x.shape[:-1], y.shape[-1] + y.shape[-2]))
    return x.index_select(-1, order), y.index_select(inputs_of_y, order)


@cache
def _order(inputs: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(sum(n * 31**i for i, n in enumerate(shape))))
