"""Latent attention as a mixer: heads share one small vector for each token (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.attention import LatentHeads
from ..layers.linear import Linear
from ..layers.norm import Norm
from ..layers.ops import Ops
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Attention over vectors in the paged cache. Prompts and decode steps compute it in the same way: absorbed."""

    down: Linear  # queries, or the vector that they are projected from; then the latent and the shared key
    query_size: int  # outputs of `down` before the latent
    query_norm: Norm | None  # of that vector
    query_up: Linear | None  # from it to queries; None: `down` projects queries
    heads: LatentHeads
    output: Linear
    ops: Ops

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected = self.down(normed)
        query, latent = projected[:, : self.query_size], projected[:, self.query_size :]
        self.heads.write(step.ops, latent)  # before the next product, which overwrites `projected`
        if self.query_up is not None and self.query_norm is not None:
            query = self.query_up(self.ops.norm(query, self.query_norm, out=query))
        return self.output(step.returned(self.heads.attend(step.attention, step.ops, query)))
