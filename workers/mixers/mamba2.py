"""Mamba 2 as a mixer: a projection, a convolution, the scan, a gated norm, and the output projection."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoint.recurrent.mamba2 import Mamba2Layer
from ..distributed.tensor_parallel import TensorParallelGroup
from ..layers.linear import Linear
from ..layers.recurrent.recurrences import Recurrences
from ..layers.recurrent.weights import CausalConv, GatedNorm, Mamba2
from .layer_states import layer_states
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class Mamba2Mixer:
    """One rank's heads. If a norm spans the heads of several ranks, these are gathered and each rank normalises all."""

    layer: int
    sizes: Mamba2Layer  # of this rank's share
    into: Linear  # gates, then inputs of the convolution, then steps
    convolution: CausalConv
    scan: Mamba2
    norm: GatedNorm  # of this rank's elements, or of all
    output: Linear
    recurrences: Recurrences
    group: TensorParallelGroup

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected, view, sizes = self.into(normed), step.view, self.sizes
        inner, steps_from = sizes.inner_size, sizes.inner_size + sizes.channels
        gates, dt = projected[:, :inner], projected[:, steps_from:]
        states = view.cache.states[self.layer]
        last_inputs, matrices = layer_states(states, sizes.width, sizes.channels, projected.dtype)
        x = projected[:, inner:steps_from]
        x = self.recurrences.causal_conv(view.state_rows, last_inputs, self.convolution, x)
        y = self.recurrences.mamba2(view.state_rows, matrices.view(-1, *self.scan.state_shape), self.scan, x, dt)
        return self.output(self._normed(y, gates))

    def _normed(self, y: Tensor, gates: Tensor) -> Tensor:
        if len(self.norm.weight) == y.shape[1]:
            return self.recurrences.gated_norm(self.norm, y, gates)
        first = self.group.rank * y.shape[1]
        whole = self.recurrences.gated_norm(self.norm, self._gathered(y), self._gathered(gates.contiguous()))
        # A single row counts as contiguous with any stride, but products of several segments need its own.
        return whole[:, first : first + y.shape[1]].clone(memory_format=torch.contiguous_format)

    def _gathered(self, part: Tensor) -> Tensor:
        """The columns of all ranks, [tokens, size]."""
        return self.group.stack(part).transpose(0, 1).reshape(len(part), -1)
