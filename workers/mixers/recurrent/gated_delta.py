"""Gated delta nets as mixers: that of Qwen3-Next, Qwen3.5 and OLMo Hybrid, and that of Kimi Linear."""

from dataclasses import dataclass

from torch import Tensor

from ...geometry.recurrent.gated_delta import GatedDeltaLayer
from ...layers.linear import Linear
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm
from ..mixer import GroupStep
from .layer_states import layer_states


@dataclass(frozen=True, slots=True, eq=False)
class GatedDeltaMixer:
    """One rank's heads."""

    layer: int
    sizes: GatedDeltaLayer  # of this rank's share
    into: Linear  # queries, keys and values, then gates, then b, then alpha
    convolution: CausalConv
    delta: GatedDelta
    norm: GatedNorm
    output: Linear
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected, view, sizes = self.into(normed), step.view, self.sizes
        of_gates = sizes.channels + sizes.inner_size
        gates, x = projected[:, sizes.channels : of_gates], projected[:, : sizes.channels]
        b, alpha = projected[:, of_gates : of_gates + sizes.heads], projected[:, of_gates + sizes.heads :]
        states = view.cache.states[self.layer]
        last_inputs, matrices = layer_states(states, sizes.width, sizes.channels, projected.dtype)
        x = self.recurrences.causal_conv(view.state_rows, last_inputs, self.convolution, x)
        matrices = matrices.view(-1, *self.delta.state_shape)
        y = self.recurrences.gated_delta(view.state_rows, matrices, self.delta, x, b, alpha)
        return self.output(self.recurrences.gated_norm(self.norm, step.returned(y), step.returned(gates)))


@dataclass(frozen=True, slots=True, eq=False)
class KimiDeltaMixer:
    """Kimi delta attention (arXiv 2510.26692), in which each element of a key has a decay: one rank's heads.

    The elements from which decays and gates are projected are the same on all ranks.
    """

    layer: int
    sizes: GatedDeltaLayer  # of this rank's share
    into: Linear  # queries, keys and values, then b, then the elements of decays, then those of gates
    convolution: CausalConv
    decays: Linear
    delta: GatedDelta
    gates: Linear
    norm: GatedNorm
    output: Linear
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected, view, sizes = self.into(normed), step.view, self.sizes
        states = view.cache.states[self.layer]
        last_inputs, matrices = layer_states(states, sizes.width, sizes.channels, projected.dtype)
        x = self.recurrences.causal_conv(view.state_rows, last_inputs, self.convolution, projected[:, : sizes.channels])
        # In memory of its own, because the next product overwrites the result of this one.
        rest = self.recurrences.copied("inputs of gates", projected[:, sizes.channels :])
        end = sizes.heads + sizes.rank
        b, of_decays, of_gates = rest[:, : sizes.heads], rest[:, sizes.heads : end], rest[:, end:]
        matrices = matrices.view(-1, *self.delta.state_shape)
        y = self.recurrences.gated_delta(view.state_rows, matrices, self.delta, x, b, self.decays(of_decays))
        gates = self.gates(step.returned(of_gates))
        return self.output(self.recurrences.gated_norm(self.norm, step.returned(y), gates))
