"""Mamba 1 as a mixer: a convolution, steps, b and c that are projected from its outputs, the scan, and a gate."""

from dataclasses import dataclass

from torch import Tensor

from ...geometry.recurrent.mamba1 import Mamba1Layer
from ...layers.linear import Linear
from ...layers.recurrent.recurrences import Recurrences, SelectiveScan
from ...layers.recurrent.weights import CausalConv, Mamba1, PartNorms
from ..mixer import GroupStep
from .layer_states import layer_states


@dataclass(frozen=True, slots=True, eq=False)
class Mamba1Mixer:
    """One rank's channels; steps of low rank, b and c are the same on all ranks.

    Gates are projected last, as the result of a product is valid only until the next product.
    """

    layer: int
    sizes: Mamba1Layer  # of this rank's share
    into: Linear
    convolution: CausalConv
    parts: Linear  # steps of low rank, then b, then c
    norms: PartNorms
    steps: Linear  # of all channels, without their bias
    scan: Mamba1
    gates: Linear
    output: Linear
    recurrences: Recurrences
    selective: SelectiveScan

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        view, sizes, x = step.view, self.sizes, self.into(normed)
        states = view.cache.states[self.layer]
        last_inputs, numbers = layer_states(states, sizes.width, sizes.channels, x.dtype)
        x = self.recurrences.causal_conv(view.state_rows, last_inputs, self.convolution, x)
        parts = self.selective.normed_parts(self.norms, self.parts(x))
        dt, b_and_c = self.steps(parts[:, : sizes.step_rank]), parts[:, sizes.step_rank :]
        numbers = numbers.view(-1, *self.scan.state_shape)
        y = self.selective.scan(view.state_rows, numbers, self.scan, x, dt, b_and_c)
        return self.output(self.recurrences.silu_gated(step.returned(y), self.gates(step.returned(normed))))
