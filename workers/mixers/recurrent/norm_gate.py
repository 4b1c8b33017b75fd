"""The gate at the end of a recurrence, with a norm."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...distributed.tensor_parallel import TensorParallelGroup
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import GatedNorm

Gate = Callable[[Tensor, Tensor], Tensor]  # outputs, gates -> gated: [tokens, size] of one rank; gates may be strided


@dataclass(frozen=True, slots=True, eq=False)
class NormGate:
    """A gated norm. If it spans the heads of several ranks, these are gathered and each rank normalises all."""

    norm: GatedNorm  # of this rank's elements, or of all
    recurrences: Recurrences
    group: TensorParallelGroup

    def __call__(self, y: Tensor, gates: Tensor) -> Tensor:
        if len(self.norm.weight) == y.shape[1]:
            return self.recurrences.gated_norm(self.norm, y, gates)
        first = self.group.rank * y.shape[1]
        whole = self.recurrences.gated_norm(self.norm, self._gathered(y), self._gathered(gates.contiguous()))
        # A single row counts as contiguous with any stride, but products of several segments need its own.
        return whole[:, first : first + y.shape[1]].clone(memory_format=torch.contiguous_format)

    def _gathered(self, part: Tensor) -> Tensor:
        """The columns of all ranks, [tokens, size]."""
        return self.group.stack(part).transpose(0, 1).reshape(len(part), -1)
