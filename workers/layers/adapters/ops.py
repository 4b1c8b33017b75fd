"""The interface of the kernels that add what adapters add to projections."""

from typing import Protocol

from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas


class AdapterOps(Protocol):
    """The arithmetic of adapters. A row's bits depend only on that row. Sums are valid until the next of their kind."""

    def announce(self, deltas: Deltas, groups: AdapterGroups, x: Tensor, divided: bool) -> None:
        """Say that `shrink` and `expand` follow the next product, which may compute some of them. No result changes.

        `divided`: `expand` will add the sums of other ranks too.
        """
        ...

    def shrink(self, deltas: Deltas, groups: AdapterGroups, x: Tensor) -> Tensor:
        """A x of the grouped rows of `x` [rows, inputs]: [rows, width] float32. The rest is undefined."""
        ...

    def look_up(self, deltas: Deltas, groups: AdapterGroups, ids: Tensor) -> Tensor:
        """The same for a table, whose inputs are `ids` [rows] i64."""
        ...

    def expand(self, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
        """Add scale * B (A x) to the grouped rows of `y` [rows, outputs] in place; A x is the sum of `shares`.

        `shares` [ranks, rows, width] are added in one order. `y` may be float32 for any dtype of the model.
        """
        ...
