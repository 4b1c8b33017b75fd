"""The feed-forward of a layer: dense, or a mixture of experts; and the end of a layer behind it, with its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..checkpoint.weight_forms import Weight
from ..geometry.model_options import Activation
from .embedding import VocabularyEmbedding
from .linear import Linear
from .norm import Norm
from .ops import Ops


class FeedForward(Protocol):
    """One layer's feed-forward, with its weights in the layout of its kernels."""

    def __call__(self, normed: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; a row's bits depend only on that row. Valid until any Linear's next."""
        ...


class RoutedFeedForward(FeedForward, Protocol):
    """A mixture of experts."""

    def __call__(self, normed: Tensor, logits: Tensor | None = None) -> Tensor:
        """The same; `logits` [tokens, experts] are the router's, if it does not read `normed`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseFeedForward:
    """The same weights for every token."""

    gate_up: Linear  # gate, then up; without a gate, up alone
    activation: Activation
    down: Linear
    ops: Ops

    def __call__(self, normed: Tensor) -> Tensor:
        return self.down(self.ops.activate(self.gate_up(normed), self.activation))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """The weights of a mixture of experts, as this rank holds them; matrices of experts are stacked_experts()."""

    router: Linear  # a backend's head: [tokens, experts], and one more column if the shared expert has a gate
    correction: Tensor | None  # [experts] float32
    gate_up: Weight  # of this rank's experts: gate, then up; without a gate, up alone
    down: Weight
    gate_up_bias: Tensor | None  # [experts of this rank, outputs of gate_up]
    down_bias: Tensor | None  # [experts of this rank, hidden]
    shared_gate_up: Linear | None  # None: there is no shared expert
    shared_down: Weight | None  # this rank's share of the inputs
    factors: Tensor | None = None  # [experts] float32, of their weights


@dataclass(frozen=True, slots=True, eq=False)
class DenseBesideExperts:
    """The sum of a dense feed-forward and a mixture of experts, each with norms of its own before and after it."""

    dense_norm: Norm
    dense: FeedForward
    dense_out_norm: Norm
    router_norm: Norm
    router: Linear
    experts_norm: Norm
    experts: RoutedFeedForward
    experts_out_norm: Norm
    ones: Tensor  # [hidden] float32
    ops: Ops

    def __call__(self, normed: Tensor) -> Tensor:
        """`normed`: the hidden states, which only the norms of the parts normalise."""
        ops, hidden = self.ops, normed
        logits = self.router(ops.norm(hidden, self.router_norm))
        mixed = ops.norm(self.experts(ops.norm(hidden, self.experts_norm), logits), self.experts_out_norm)
        total = ops.scale(mixed, self.ones)  # in memory of its own, because the next norm overwrites `mixed`
        ops.add(total, ops.norm(self.dense(ops.norm(hidden, self.dense_norm)), self.dense_out_norm))
        return total


@dataclass(frozen=True, slots=True, eq=False)
class LateExperts:
    """A mixture of experts beside a layer's feed-forward, whose output is added at the end of the next layer."""

    experts: RoutedFeedForward
    ones: Tensor  # [hidden] float32
    ops: Ops

    def __call__(self, normed: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden], in memory of its own."""
        return self.ops.scale(self.experts(normed), self.ones)


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
    """What follows the feed-forward of a layer: its own input, a factor of hidden states, a norm that replaces them."""

    input_gate: InputGate | None = None
    scalar: Tensor | None = None  # [hidden] float32, all the same
    norm: Norm | None = None

    def __call__(self, hidden: Tensor, own: Tensor | None, ops: Ops, returned: Callable[[Tensor], Tensor]) -> None:
        """Changes `hidden` in place; `own` [all tokens, size], whose rows may be strided, are the layer's inputs.

        `returned` chooses the tokens of `hidden` from all tokens.
        """
        if self.input_gate is not None and own is not None:
            self.input_gate(hidden, returned(own), ops)
        if self.scalar is not None:
            ops.scale(hidden, self.scalar, out=hidden)
        if self.norm is not None:
            ops.norm(hidden, self.norm, out=hidden)


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
