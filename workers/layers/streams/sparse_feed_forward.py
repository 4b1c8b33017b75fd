"""A dense feed-forward that keeps only the greatest gates of each token (Gemma 3n)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.model_options import Activation
from ..linear import Linear
from ..norm import LayerNorm
from ..ops import Ops
from .stream_ops import NO_EPS, Deviations, StreamOps

RELU = Activation("relu", is_gated=False)


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeedForward:
    """Gates are replaced by max(0, gate - mean - cut * deviation), of all of a token's gates, before their activation.

    Ranks exchange their gates, so that each normalises all.
    """

    gate: Linear
    cut: LayerNorm  # gate -> (gate - mean) / deviation - cut
    deviations: Deviations
    up: Linear
    activation: Activation  # gated
    down: Linear
    ops: Ops
    streams: StreamOps
    group: TensorParallelGroup

    def __call__(self, normed: Tensor) -> Tensor:
        ops, gates = self.ops, self.gate(normed)
        first = self.group.rank * gates.shape[1]
        every = self.group.all_gather(gates, dim=1)
        deviations = self.deviations(every)
        kept = ops.activate(ops.norm(every, self.cut), RELU)
        sparse = self.streams.scale_rows(kept[:, first : first + gates.shape[1]], deviations)
        return self.down(ops.activate(sparse, self.activation, self.up(normed)))


def norm_of_cut(size: int, cut: float, device: str) -> LayerNorm:
    """The norm of SparseFeedForward for tokens with `size` gates."""
    return LayerNorm(torch.ones(size, device=device), torch.full((size,), -cut, device=device), NO_EPS)
