"""Differential attention (arXiv 2410.05258): the difference of two softmaxes, times values of twice the size."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.norm import RMSNorm
from ..layers.recurrent.recurrences import Recurrences
from .attention import Attention
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class DifferentialAttention:
    """output(norm(first - factor * second)) of each pair of heads, which attend alone.

    KV heads lie in pairs: the first queries of a pair read the first, as many others the second. Both have the same
    values.
    """

    attention: Attention
    first_size: int  # elements of the first queries of a pair
    factor: float
    norm: RMSNorm  # of each difference
    recurrences: Recurrences  # copy

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        attended = step.returned(self.attention.attended(step, normed))
        pairs, size = attended.view(-1, 2 * self.first_size), len(self.norm.weight)
        first = self.recurrences.copied("first attention", pairs[:, : self.first_size])
        second = self.recurrences.copied("second attention", pairs[:, self.first_size :])
        ops = self.attention.ops
        difference = ops.add_norm(first.view(-1, size), second.view(-1, size), self.norm, -self.factor)
        return self.attention.output(difference.view(len(attended), -1))
