"""Attention whose outputs have a gate (Qwen3-Next, Qwen3.5, Laguna, Ling 3)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..layers.linear import Linear
from ..layers.recurrent.recurrences import Recurrences
from .attention import Attention
from .latent_attention import LatentAttention, SparseLatentAttention
from .mixer import GroupStep

AnyAttention = Attention | LatentAttention | SparseLatentAttention


@dataclass(frozen=True, slots=True, eq=False)
class GatedAttention:
    """output(attention * function(gate)), with a gate for each element that is projected from the token."""

    attention: AnyAttention
    gate: Linear
    function: Literal["sigmoid", "softplus"]
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        attended = step.returned(self.attention.attended(step, normed))
        gated = self.recurrences.sigmoid_gated if self.function == "sigmoid" else self.recurrences.softplus_gated
        return self.attention.output(gated(attended, self.gate(step.returned(normed))))
