"""What a decoder computes between its matrix products, behind one small protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..checkpoint.geometry import Activation
from ..kv.cache_view import CacheView
from .norm import Norm, RMSNorm
from .rotary import Rotary


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayout:
    """How a rank's projected token falls into heads: queries, then keys, then values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotaries: tuple[Rotary, ...]  # of each layer; those that are alike are one


@dataclass(frozen=True, slots=True, eq=False)
class KernelStep:
    """What the calls of our kernels share in a step and KV group: where keys and values go, the angles of positions."""

    view: CacheView
    angles: tuple[Tensor, ...]  # of each layer, [positions, head_dim] float32, up to the step's largest at least


class Ops(Protocol):
    """A row's bits depend on that row alone. A result is valid until the same operation is called again."""

    def start_step(self, views: Sequence[CacheView]) -> Sequence[Any]:
        """What all layers of a KV group share in one step, for each group's view; opaque to the caller."""
        ...

    def norm(self, hidden: Tensor, norm: Norm, out: Tensor | None = None) -> Tensor:
        """[tokens, hidden] normalised, in `out` if it is given, which may be `hidden` itself."""
        ...

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: Norm, multiplier: float = 1.0) -> Tensor:
        """Adds `multiplier` times `delta` to `hidden` in place; [tokens, hidden] normalised.

        `delta` may be the result of `norm`.
        """
        ...

    def add(self, hidden: Tensor, delta: Tensor, multiplier: float = 1.0) -> None:
        """Adds `multiplier` times `delta` to `hidden` in place. `delta` may be the result of `norm`."""
        ...

    def cap(self, logits: Tensor, cap: float) -> Tensor:
        """`logits` [rows, vocab] float32, whose rows may lie apart, become cap * tanh(logits / cap) in place."""
        ...

    def rotate_and_cache(
        self, step: Any, layer: int, projected: Tensor, query_norm: RMSNorm | None, key_norm: RMSNorm | None
    ) -> Tensor:
        """`step` is that of the layer's group. Takes apart `projected` [tokens, (heads + 2 kv_heads) * head_dim]; the
        cache of `layer` gets keys and values.

        Queries and keys are normalised per head, if there are norms, then turned by their positions. Returns the
        queries, [tokens, heads, head_dim].
        """
        ...

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """[tokens, n] -> the same shape; gated, [tokens, 2 * n], gate then up -> activation(gate) * up [tokens, n]."""
        ...
