"""The interface of the operations between a model's matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..geometry.model_options import Activation
from ..kv.cache_view import CacheView
from .norm import Norm
from .rotary import Rotary


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayout:
    """The heads of a projected token on one rank: queries, then keys, then values."""

    num_heads: int  # of queries
    num_kv_heads: int  # the cache has those of each layer
    head_dim: int  # of most layers
    rotaries: tuple[Rotary, ...]  # one per layer, of the size of its heads; equal ones are shared
    normalises_values: bool = False  # each value head to a mean square of 1
    by_layer: tuple[int, ...] = ()  # the number of queries of each layer; empty: num_heads in all

    def queries_of(self, layer: int) -> int:
        return self.by_layer[layer] if self.by_layer else self.num_heads


@dataclass(frozen=True, slots=True, eq=False)
class KernelStep:
    """The arguments that kernel calls of one step and KV group share: the cache view and the rotation angles."""

    view: CacheView
    angles: tuple[Tensor, ...]  # one per layer, [positions, head_dim] float32, at least up to the step's last position
    query_scales: tuple[Tensor | None, ...]  # one per layer, [positions] float32, the factors of rotated queries

    @classmethod
    def of_views(cls, views: Sequence[CacheView], heads: HeadLayout) -> "list[KernelStep]":
        angles = tuple(rotary.table(views[0].longest) for rotary in heads.rotaries)
        scales = tuple(rotary.query_scales for rotary in heads.rotaries)
        return [cls(view, angles, scales) for view in views]


class Ops(Protocol):
    """A row's bits depend only on that row. A result is valid until the same operation is called again."""

    def start_step(self, views: Sequence[CacheView]) -> Sequence[Any]:
        """The data that all layers of a KV group share in one step: one object per view, opaque to the caller."""
        ...

    def memory(self, role: str, like: Tensor, size: int) -> Tensor:
        """[tokens, size] with any contents, for `like` [tokens, n]. Valid until the same role is requested again."""
        ...

    def norm(self, hidden: Tensor, norm: Norm, out: Tensor | None = None) -> Tensor:
        """`hidden` [tokens, hidden] normalised, in `out` if given; which may be `hidden`. Rows may be strided."""
        ...

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: Norm, multiplier: float = 1.0) -> Tensor:
        """Adds `multiplier` times `delta` to `hidden` in place and returns it normalised, [tokens, hidden].

        `delta` may be the result of `norm`.
        """
        ...

    def add(self, hidden: Tensor, delta: Tensor, multiplier: float = 1.0) -> None:
        """Adds `multiplier` times `delta` to `hidden` in place. `delta` may be the result of `norm`.

        Rows of `hidden` may be strided.
        """
        ...

    def cap(self, logits: Tensor, cap: float) -> Tensor:
        """Replaces `logits` [rows, vocab] float32 by cap * tanh(logits / cap) in place. Rows may be strided."""
        ...

    def clip(self, x: Tensor, limit: float) -> Tensor:
        """Limits `x` [tokens, n] to [-limit, limit] in place; a NaN stays a NaN."""
        ...

    def scale(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        """`x` [tokens, n] times `factors` [n] float32, rounded once, in `out` if given; which may be `x`.

        Rows of `x` and `out` may be strided.
        """
        ...

    def rotate_and_cache(
        self, step: Any, layer: int, projected: Tensor, query_norm: Norm | None, key_norm: Norm | None
    ) -> Tensor:
        """Splits `projected` [tokens, (heads + 2 kv_heads) * head_dim]; writes keys and values to the cache of `layer`.

        `step` is that of the layer's group. Queries and keys are normalised per head, if there are norms, whose weights
        may be [heads, head_dim]; then rotated by position. Returns the queries, [tokens, heads, head_dim].
        """
        ...

    def rotate_queries(self, step: Any, layer: int, projected: Tensor, query_norm: Norm | None) -> Tensor:
        """The same for `projected` [tokens, heads * head_dim] of a layer without keys and values of its own."""
        ...

    def activate(self, x: Tensor, activation: Activation, up: Tensor | None = None) -> Tensor:
        """The activation of [tokens, n]; if gated, activation(gate) * up of [tokens, 2 * n], gate then up.

        With `up` [tokens, n], whose rows may be strided, `x` has the gates alone.
        """
        ...
