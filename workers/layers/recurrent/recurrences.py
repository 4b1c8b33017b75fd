"""The interface of the operations of recurrent layers, which start from a state of the request's earlier tokens."""

from typing import Protocol

from torch import Tensor

from ...kv.draft_inputs import Copies
from ...kv.state_rows import StateRows
from .weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2, PartNorms


class Recurrences(Copies, Protocol):
    """A token's bits depend only on its request's tokens up to it, however these are divided among steps.

    `states` is the memory of one layer's states, by block: [blocks, ...], of which blocks may be any distance apart. A
    result is valid until the same operation is called again.
    """

    def causal_conv(
        self,
        rows: StateRows,
        states: Tensor,
        conv: CausalConv,
        x: Tensor,
        x_factors: Tensor | None = None,
        y_factors: Tensor | None = None,
    ) -> Tensor:
        """The convolution of `x` [tokens, channels], times `x_factors`, if given; times `y_factors`, likewise.

        All three are of one dtype and stride; rows may be strided. `states` [blocks, width - 1, channels] of the same
        dtype are the last inputs, products with `x_factors` being rounded.
        """
        ...

    def mamba2(self, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor) -> Tensor:
        """The outputs of all heads, [tokens, heads * head_dim], for steps `dt` [tokens, heads].

        `x` [tokens, heads * head_dim + 2 * groups * state_size] are the inputs of heads, then b, then c of groups; rows
        of both may be strided. `states` [blocks, *weights.state_shape] float32.
        """
        ...

    def gated_delta(
        self, rows: StateRows, states: Tensor, weights: GatedDelta, x: Tensor, b: Tensor, alpha: Tensor
    ) -> Tensor:
        """The outputs of all heads, [tokens, heads * value_dim]; beta is max_beta * sigmoid(`b` [tokens, heads]).

        `x` [tokens, 2 * key_heads * key_dim + heads * value_dim] are queries, then keys, then values. `alpha` [tokens,
        heads * weights.decays], of one decay a head with the strides of `b`. `states` [blocks, *weights.state_shape]
        float32.
        """
        ...

    def gated_norm(self, norm: GatedNorm, x: Tensor, gate: Tensor) -> Tensor:
        """`x` [tokens, size] normalised and gated, rounded once; rows of `gate` may be strided."""
        ...

    def silu_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """`x` times silu(gate), both [tokens, size], rounded once; rows of `gate` may be strided."""
        ...

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """`x` times the sigmoid of `gate`, both [tokens, size], rounded once; rows of `gate` may be strided."""
        ...

    def softplus_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """`x` times softplus(gate), both [tokens, size], rounded once; rows of `gate` may be strided."""
        ...


class SelectiveScan(Protocol):
    """The operations of Mamba 1, with the promises of Recurrences."""

    def normed_parts(self, norms: PartNorms, x: Tensor) -> Tensor:
        """`x` [tokens, steps + 2 * state_size] with each of its three parts normalised, rounded once.

        Without norms, `x` or a copy of it that outlives the next product.
        """
        ...

    def scan(self, rows: StateRows, states: Tensor, weights: Mamba1, x: Tensor, dt: Tensor, b_and_c: Tensor) -> Tensor:
        """The outputs of all channels, [tokens, channels], of inputs `x` and steps `dt`, both [tokens, channels].

        `b_and_c` [tokens, 2 * state_size]; rows of the three may be strided. `states` [blocks, *weights.state_shape]
        float32.
        """
        ...
