"""Latent attention as a mixer: heads share one small vector for each token (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.attention import KeySelector, LatentHeads
from ..layers.linear import Linear
from ..layers.norm import LayerNorm, Norm
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
        return self.output(step.returned(self.attended(step, normed)))

    def attended(self, step: GroupStep, normed: Tensor) -> Tensor:
        """The input of the output projection."""
        projected = self.down(normed)
        query, latent = projected[:, : self.query_size], projected[:, self.query_size :]
        self.heads.write(step.ops, latent)  # before the next product, which overwrites `projected`
        if self.query_up is not None and self.query_norm is not None:
            query = self.query_up(self.ops.norm(query, self.query_norm, out=query))
        return self.heads.attend(step.attention, step.ops, query)


@dataclass(frozen=True, slots=True, eq=False)
class LayerIndexer:
    """The indexer of one layer, the same on every rank. Its weights are not quantized: they decide what is seen."""

    keys: Linear
    key_norm: LayerNorm
    queries: Linear  # from the vector that queries of attention are projected from
    weights: Linear  # of heads, with float32 results
    selector: KeySelector
    ops: Ops

    def write(self, step: GroupStep, normed: Tensor) -> Tensor:
        """Write the tokens' keys to the cache. Returns the weights of their heads, valid until the next output head."""
        keys = self.keys(normed)
        self.selector.write(step.ops, self.ops.norm(keys, self.key_norm, out=keys))
        return self.weights(normed)

    def select(self, step: GroupStep, query: Tensor, weights: Tensor) -> None:
        """Choose by the normalised vectors [tokens, query_rank] that queries are projected from."""
        self.selector.select(step.view, step.ops, self.queries(query), weights)


@dataclass(frozen=True, slots=True, eq=False)
class SparseLatentAttention:
    """Latent attention over the tokens that an indexer chose."""

    down: Linear  # the vector that queries are projected from; then the latent and the shared key
    query_size: int
    query_norm: Norm
    query_up: Linear
    heads: LatentHeads  # with a selector
    indexer: LayerIndexer | None  # None: an earlier layer's choice
    output: Linear
    ops: Ops

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        return self.output(step.returned(self.attended(step, normed)))

    def attended(self, step: GroupStep, normed: Tensor) -> Tensor:
        """As of LatentAttention."""
        weights = None if self.indexer is None else self.indexer.write(step, normed)
        projected = self.down(normed)
        self.heads.write(step.ops, projected[:, self.query_size :])
        # In memory that no product overwrites, as two products read it.
        query = self.ops.norm(projected[:, : self.query_size], self.query_norm)
        if self.indexer is not None and weights is not None:
            self.indexer.select(step, query, weights)
        return self.heads.attend(step.attention, step.ops, self.query_up(query))
