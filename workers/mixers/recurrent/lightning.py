"""Lightning attention as a mixer: a projection with silu, the scan, a norm with a gate, and the output projection."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...geometry.model_options import Activation
from ...layers.linear import Linear
from ...layers.ops import Ops
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import Mamba2
from ..mixer import GroupStep
from .norm_gate import NormGate

SILU = Activation(is_gated=False)


@dataclass(frozen=True, slots=True, eq=False)
class LightningMixer:
    """One rank's heads. The scan is that of Mamba 2, of which all steps are 1 and each head is a group.

    Gates are projected last, as the result of a product is valid only until the next product.
    """

    layer: int
    into: Linear  # values, then keys, then queries: what Mamba 2 names x, b and c
    scan: Mamba2
    steps: Tensor  # [1, heads] in the model's dtype: any numbers, as the scan limits steps to 1
    gates: Linear
    gate: NormGate
    output: Linear
    ops: Ops
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        view = step.view
        x = self.ops.activate(self.into(normed), SILU)
        matrices = view.cache.states[self.layer].view(torch.float32).view(-1, *self.scan.state_shape)
        y = self.recurrences.mamba2(view.state_rows, matrices, self.scan, x, self.steps.expand(len(x), -1))
        return self.output(self.gate(step.returned(y), self.gates(step.returned(normed))))
