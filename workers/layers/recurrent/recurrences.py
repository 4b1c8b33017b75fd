"""The interface of the operations of recurrent layers, which start from a state of the request's earlier tokens."""

from typing import Protocol

from torch import Tensor

from ...kv.state_rows import StateRows
from .weights import CausalConv


class Recurrences(Protocol):
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
