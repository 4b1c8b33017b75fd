"""Reads feed-forwards: dense ones, experts, and both side by side."""

import math
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...geometry.experts import Experts
from ...geometry.model_options import Activation
from ...layers.feed_forward import DenseBesideExperts, DenseFeedForward, FeedForward, LateExperts
from ...layers.ops import Ops
from ..projected import ScaledLinear
from .expert_reader import ExpertReader
from .layer_reader import LayerReader

XIELU_BETA = 0.5  # the slope at 0, as the kernels have it


class FeedForwardReader:
    """Reads the feed-forward of a layer."""

    def __init__(self, reader: LayerReader, ops: Ops):
        self._reader = reader
        self._ops = ops
        self.experts = ExpertReader(reader)

    def read(self, index: int) -> FeedForward | None:
        if not self._reader.names.down:
            return None
        if (experts := self._reader.geometry.experts_of(index)) is None:
            return self.dense(index)
        if experts.is_added_later:
            return self.dense(index)
        return self._beside_dense(index, experts) if experts.is_beside_dense else self.experts.read(index, experts)

    @cached_property
    def _ones(self) -> Tensor:
        return torch.ones(self._reader.geometry.hidden_size, device=self._reader.device)

    def late_experts(self, index: int) -> LateExperts | None:
        if (experts := self._reader.geometry.experts_of(index)) is None or not experts.is_added_later:
            return None
        return LateExperts(self.experts.read(index, experts), self._ones, self._ops)

    def dense(self, index: int) -> FeedForward:
        reader = self._reader
        geometry, names = reader.geometry.of_layer(index), reader.names
        size = geometry.intermediate_size
        gate_up = reader.gate_up((names.gate, names.up), index, size, geometry.biases.mlp)
        if (factors := self._gate_up_factors) is not None:
            gate_up = ScaledLinear(gate_up, self._ops, factors)
        bias = geometry.biases.mlp if geometry.biases.down is None else geometry.biases.down
        down = reader.row_parallel(names.down.format(index), geometry.hidden_size, size, bias)
        down = reader.after_norm(down, self._ops, names.down_norm.format(index), size)
        return DenseFeedForward(gate_up, self._activation(index), down, self._ops)

    @cached_property
    def _gate_up_factors(self) -> Tensor | None:
        """That of the result of `down`, which is linear in `up`, is applied to `up`. None: the model has none."""
        reader = self._reader
        if (parts := reader.geometry.multipliers.parts) is None:
            return None
        share = reader.geometry.intermediate_size // reader.group.size
        return torch.tensor(parts.mlp_multipliers).repeat_interleave(share).to(reader.device)

    def _activation(self, index: int) -> Activation:
        """The activation of a dense feed-forward, with the layer's own parameters if it has some."""
        reader = self._reader
        activation = reader.geometry.activation
        if activation.kind != "xielu":
            return activation
        name = reader.names.activation.format(index)
        if f"{name}.beta" in reader.checkpoint.entries and (beta := self._number(f"{name}.beta")) != XIELU_BETA:
            raise ConfigError(f"{name}.beta={beta} is not supported for xIELU; only {XIELU_BETA} is")
        stated = reader.geometry.xielu
        alphas = stated[index] if stated else [self._number(f"{name}.{each}") for each in ("alpha_p", "alpha_n")]
        alpha_p, alpha_n = map(_softplus, alphas)
        return replace(activation, alpha_p=alpha_p, alpha_n=XIELU_BETA + alpha_n)

    def _number(self, name: str) -> float:
        """A tensor of one element, or of no dimensions."""
        reader = self._reader
        shape = tuple(reader.checkpoint.entries[name].shape) if name in reader.checkpoint.entries else (1,)
        read = partial(reader.read_tensor, name, shape or (), None, torch.float32)
        return reader.tensor(name, read).item()

    def _beside_dense(self, index: int, experts: Experts) -> FeedForward:
        reader = self._reader
        names, hidden = reader.names.experts, reader.geometry.hidden_size
        every = names.dense_norm, names.dense_out_norm, names.norm, names.out_norm
        dense_norm, dense_out_norm, norm, out_norm = (reader.norm(name.format(index), hidden) for name in every)
        return DenseBesideExperts(
            dense_norm=dense_norm,
            dense=self.dense(index),
            dense_out_norm=dense_out_norm,
            router_norm=reader.rms_norm(names.router_norm.format(index), hidden, hidden**-0.5),
            router=self.experts.router(index, experts),
            experts_norm=norm,
            experts=self.experts.read(index, experts),
            experts_out_norm=out_norm,
            ones=self._ones,
            ops=self._ops,
        )


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
