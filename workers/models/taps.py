"""Copies of a decoder's hidden states, for a head that drafts from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layers.ops import Ops


class Taps:
    """The inputs of chosen layers in the last forward pass. Without a head none is chosen, and nothing is copied.

    The input of a layer is the residual stream; that of the layer after the last one is what the decoder returns.

    The memory never moves, so a recorded step copies them as well.
    """

    def __init__(self) -> None:
        self.of_layer: dict[int, Tensor] = {}  # [max_tokens, hidden]
        self._layers: tuple[int, ...] = ()
        self._ones = torch.empty(0)

    def open(self, layers: Sequence[int], hidden_size: int, dtype: torch.dtype, max_tokens: int) -> None:
        """Copy the inputs of `layers`, which may occur twice, of up to `max_tokens` tokens in each pass from now on."""
        self._layers = tuple(layers)
        self.of_layer = {layer: torch.empty((max_tokens, hidden_size), dtype=dtype) for layer in layers}
        self._ones = torch.ones(hidden_size)

    def copy(self, layer: int, hidden: Tensor, ops: Ops) -> None:
        """Copy `hidden` [tokens, hidden], the input of `layer`, by a kernel: so that a recording contains it."""
        ops.scale(hidden, self._ones, out=self.of_layer[layer][: len(hidden)])

    def last(self, num_tokens: int) -> Tensor:
        """The copies of the last pass, which had `num_tokens`, side by side in the order of `layers`.

        [tokens, layers * hidden], in memory of its own.
        """
        return torch.cat([self.of_layer[layer][:num_tokens] for layer in self._layers], dim=1)
