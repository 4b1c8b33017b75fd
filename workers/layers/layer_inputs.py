"""Inputs of single layers: vectors of each token that enter the residual stream after a layer's feed-forward."""

from dataclasses import dataclass

from torch import Tensor

from ..checkpoint.geometry import Activation
from .embedding import VocabularyEmbedding
from .linear import Linear
from .norm import Norm
from .ops import Ops


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """The inputs of all layers: the sum of a token's own vectors and of projections of its embedding, normalised."""

    size: int  # of a layer's vector
    table: VocabularyEmbedding  # of the vectors of all layers, one after another
    projection: Linear
    norm: Norm  # of each layer's part of the projection
    ops: Ops

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """[tokens, layers * size]; `hidden` are the embedded tokens."""
        own = self.table(token_ids)
        normed = self.ops.norm(self.projection(hidden).view(-1, self.size), self.norm)
        self.ops.add(own.view(-1, self.size), normed)
        return own

    def of_layer(self, inputs: Tensor, layer: int) -> Tensor:
        return inputs[:, layer * self.size : (layer + 1) * self.size]


@dataclass(frozen=True, slots=True, eq=False)
class InputGate:
    """projection(activation(gate(hidden)) * input), normalised and added to the hidden states."""

    gate: Linear
    activation: Activation  # gated
    projection: Linear
    norm: Norm

    def __call__(self, hidden: Tensor, own: Tensor, ops: Ops) -> None:
        gated = ops.activate(self.gate(hidden), self.activation, own)
        ops.add(hidden, ops.norm(self.projection(gated), self.norm))


@dataclass(frozen=True, slots=True, eq=False)
class LayerEnd:
    """What follows the feed-forward of a layer: the layer's own input, then a factor of the hidden states."""

    input_gate: InputGate | None
    scalar: Tensor | None  # [hidden] float32, all the same

    def __call__(self, hidden: Tensor, own: Tensor | None, ops: Ops) -> None:
        """Changes `hidden` in place; `own` [tokens, size], whose rows may be strided, are the layer's inputs."""
        if self.input_gate is not None and own is not None:
            self.input_gate(hidden, own, ops)
        if self.scalar is not None:
            ops.scale(hidden, self.scalar, out=hidden)
