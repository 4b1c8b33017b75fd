"""Mamba 2 as a mixer: a projection, a convolution, the scan, a gate, and the output projection."""

from dataclasses import dataclass

from torch import Tensor

from ...geometry.recurrent.mamba2 import Mamba2Layer
from ...layers.linear import Linear
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import CausalConv, Mamba2
from ..mixer import GroupStep
from .layer_states import layer_states
from .norm_gate import Gate


@dataclass(frozen=True, slots=True, eq=False)
class Mamba2Mixer:
    """One rank's heads."""

    layer: int
    sizes: Mamba2Layer  # of this rank's share
    into: Linear  # gates, then inputs of the convolution, then steps
    convolution: CausalConv
    scan: Mamba2
    gate: Gate
    output: Linear
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected, view, sizes = self.into(normed), step.view, self.sizes
        inner, steps_from = sizes.inner_size, sizes.inner_size + sizes.channels
        gates, dt = projected[:, :inner], projected[:, steps_from:]
        states = view.cache.states[self.layer]
        last_inputs, matrices = layer_states(states, sizes.width, sizes.channels, projected.dtype)
        x = projected[:, inner:steps_from]
        x = self.recurrences.causal_conv(view.state_rows, last_inputs, self.convolution, x)
        y = self.recurrences.mamba2(view.state_rows, matrices.view(-1, *self.scan.state_shape), self.scan, x, dt)
        return self.output(self.gate(step.returned(y), step.returned(gates)))
