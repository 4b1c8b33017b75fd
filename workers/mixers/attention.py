"""Attention as a mixer: projections, norms of heads, rotation, the cache and the output projection."""

from dataclasses import dataclass

from torch import Tensor

from ..geometry.layer_options import AttentionOptions
from ..layers.attention import AttentionBackend
from ..layers.linear import Linear
from ..layers.norm import Norm
from ..layers.ops import Ops
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Attention over keys and values in the paged cache."""

    layer: int
    qkv: Linear  # queries, then keys, then values
    query_norm: Norm | None  # of each head
    key_norm: Norm | None
    output: Linear
    options: AttentionOptions
    ops: Ops
    backend: AttentionBackend
    query_factors: Tensor | None = None  # [queries] float32, of the elements of rotated queries

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        return self.output(step.returned(self.attended(step, normed)))

    def attended(self, step: GroupStep, normed: Tensor) -> Tensor:
        """The input of the output projection."""
        query = self.ops.rotate_and_cache(step.ops, self.layer, self.qkv(normed), self.query_norm, self.key_norm)
        if self.query_factors is not None:
            flat = query.flatten(1)
            self.ops.scale(flat, self.query_factors, out=flat)
        return self.backend.attend(step.attention, self.layer, query, self.options).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class NarrowValues:
    """output(attention * factors). The cache has values of the size of keys; only the first elements are read."""

    attention: Attention
    head_dim: int  # of keys
    factors: Tensor  # [value_dim] float32, of each head's elements

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        attended = step.returned(self.attention.attended(step, normed))
        heads = attended.view(-1, self.head_dim)[:, : len(self.factors)]
        return self.attention.output(self.attention.ops.scale(heads, self.factors).view(len(attended), -1))


@dataclass(frozen=True, slots=True, eq=False)
class SharedAttention:
    """Attention over the keys and values of an earlier layer, whose tensors in the cache are also this layer's."""

    layer: int
    query: Linear
    query_norm: Norm | None  # of each head
    output: Linear
    options: AttentionOptions
    ops: Ops
    backend: AttentionBackend

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        query = self.ops.rotate_queries(step.ops, self.layer, self.query(normed), self.query_norm)
        attended = self.backend.attend(step.attention, self.layer, query, self.options).flatten(1)
        return self.output(step.returned(attended))
