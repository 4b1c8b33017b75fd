"""Attention whose outputs have a gate (Qwen3-Next, Qwen3.5)."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.linear import Linear
from ..layers.recurrent.recurrences import Recurrences
from .attention import Attention
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class GatedAttention:
    """output(attention * sigmoid(gate)), with a gate for each element that is projected from the token."""

    attention: Attention
    gate: Linear
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        attended = step.returned(self.attention.attended(step, normed))
        return self.attention.output(self.recurrences.sigmoid_gated(attended, self.gate(step.returned(normed))))
