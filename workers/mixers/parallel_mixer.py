"""Attention and a recurrence in parallel, in one layer (Falcon-H1)."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.ops import Ops
from .mixer import GroupStep, Mixer


@dataclass(frozen=True, slots=True, eq=False)
class ParallelMixer:
    """The sum of what attention and a recurrence compute from the same input, each times a factor.

    Its layer has keys, values and a state. The step is that of the layer's pair of groups: attention reads the part of
    the one, the recurrence the part of the other, and neither knows of the pair.
    """

    attention: Mixer
    attention_factor: float
    recurrence: Mixer
    recurrence_factors: Tensor  # [hidden] float32, all the same
    ops: Ops

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        # In memory of its own, because the next projection overwrites the result of this one.
        mixed = self.ops.scale(self.recurrence(step, normed), self.recurrence_factors)
        self.ops.add(mixed, self.attention(step, normed), self.attention_factor)
        return mixed
