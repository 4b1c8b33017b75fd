"""Reads projections and feed-forwards: dense ones, and the experts that this rank holds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.matrix_reader import FloatReader, MatrixPart
from ...checkpoint.stacked_experts import StackedPart, stacked_experts
from ...checkpoint.weight_forms import Weight, joined, with_outputs
from ...geometry.experts import Experts
from ...geometry.model_options import Activation
from ...layers.adapters.sites import SitePart
from ...layers.feed_forward import (
    DenseBesideExperts,
    DenseFeedForward,
    ExpertWeights,
    FeedForward,
    RoutedFeedForward,
)
from ...layers.linear import Linear
from ...layers.ops import Ops
from ..matrix_rows import Rows, stacked_rows
from .weight_reader import NormReader

XIELU_BETA = 0.5  # the slope at 0, as the kernels have it


class ProjectionReader(NormReader):
    """Reads the matrix products of a layer, each split among the ranks in its own way."""

    def _column_parallel(self, parts: list[Rows], columns: int, bias: bool, name: str = "") -> Linear:
        """One product for the given rows of several projections; `name`: where those of the first have another."""
        weights = self._weights(
            name or parts[0].name,
            lambda: joined([self._rows(self._source.projections, rows, columns) for rows in parts]),
        )
        bias_vector = self._bias(parts, name) if bias else None
        product = self._product(weights, bias_vector)
        if self._adapters is None:
            return product
        sites = [SitePart(each.name, each.total, each.chosen_rows(), len(each)) for each in parts]
        return self._adapters.column_parallel(product, sites, columns)

    def _row_parallel(self, name: str, rows: int, columns: int, bias: bool) -> Linear:
        weight = self._share(name, rows, columns)
        bias_vector = self._bias([Rows(name, rows, (0, rows))]) if bias else None
        product = self._backend.row_parallel(weight, bias_vector, self._group, is_wide=self._geometry.altup is not None)
        if self._adapters is None:
            return product
        return self._adapters.row_parallel(product, name, rows, columns, self._even_span(columns))

    def _share(self, name: str, rows: int, columns: int) -> Weight:
        """This rank's share of the inputs of a row-parallel product."""
        part = MatrixPart((rows, columns), 1, *self._even_span(columns))
        (weight,) = self._weights(name, lambda: [self._matrix(self._source.projections, name, part)], is_share=True)
        return weight


class FeedForwardReader(ProjectionReader):
    """Reads the feed-forward of a layer."""

    def _feed_forward(self, index: int, ops: Ops) -> FeedForward | None:
        if not self._names.down:
            return None
        if (experts := self._geometry.experts_of(index)) is None:
            return self._dense(index, ops)
        return self._beside_dense(index, experts, ops) if experts.is_beside_dense else self._experts(index, experts)

    def _dense(self, index: int, ops: Ops) -> FeedForward:
        geometry, names = self._geometry.of_layer(index), self._names
        size = geometry.intermediate_size
        gate_up = self._gate_up((names.gate, names.up), index, size, geometry.biases.mlp)
        bias = geometry.biases.mlp if geometry.biases.down is None else geometry.biases.down
        down = self._row_parallel(names.down.format(index), geometry.hidden_size, size, bias)
        return DenseFeedForward(gate_up, self._activation(index), down, ops)

    def _activation(self, index: int) -> Activation:
        """The activation of a dense feed-forward, with the layer's own parameters if it has some."""
        activation = self._geometry.activation
        if activation.kind != "xielu":
            return activation
        name = self._names.activation.format(index)
        if f"{name}.beta" in self._checkpoint.entries and (beta := self._number(f"{name}.beta")) != XIELU_BETA:
            raise ConfigError(f"{name}.beta={beta} is not supported for xIELU; only {XIELU_BETA} is")
        stated = self._geometry.xielu
        alphas = stated[index] if stated else [self._number(f"{name}.{each}") for each in ("alpha_p", "alpha_n")]
        alpha_p, alpha_n = map(_softplus, alphas)
        return replace(activation, alpha_p=alpha_p, alpha_n=XIELU_BETA + alpha_n)

    def _number(self, name: str) -> float:
        """A tensor of one element, or of no dimensions."""
        shape = tuple(self._checkpoint.entries[name].shape) if name in self._checkpoint.entries else (1,)
        read = partial(self._read_tensor, name, shape or (), None, torch.float32)
        return self._tensor(name, read).item()

    def _beside_dense(self, index: int, experts: Experts, ops: Ops) -> FeedForward:
        names, hidden = self._names.experts, self._geometry.hidden_size
        every = names.dense_norm, names.dense_out_norm, names.norm, names.out_norm
        dense_norm, dense_out_norm, norm, out_norm = (self._norm(name.format(index), hidden) for name in every)
        return DenseBesideExperts(
            dense_norm=dense_norm,
            dense=self._dense(index, ops),
            dense_out_norm=dense_out_norm,
            router_norm=self._rms_norm(names.router_norm.format(index), hidden, hidden**-0.5),
            router=self._router(index, experts),
            experts_norm=norm,
            experts=self._experts(index, experts),
            experts_out_norm=out_norm,
            ones=torch.ones(hidden, device=self._device),
            ops=ops,
        )

    def _gate_up(self, names: tuple[str, str], index: int, size: int, bias: bool) -> Linear:
        order = slice(None, None, -1 if self._names.is_up_first else 1)
        inside = [name.format(index) for name in self._into(names)[order]]
        rows = stacked_rows(inside, size, self._even_span(size))[order]
        return self._column_parallel(rows, self._geometry.hidden_size, bias)

    def _into(self, names: tuple[str, str]) -> tuple[str, ...]:
        """Of the names of gate and up, those that the model has."""
        return names if self._geometry.activation.is_gated else names[1:]

    def _experts(self, index: int, experts: Experts) -> RoutedFeedForward:
        geometry, names, group = self._geometry, self._names.experts, self._group
        held, hidden, size = experts.held_by(group.rank, group.size), geometry.hidden_size, experts.intermediate_size
        into = self._into((names.gate, names.up))
        self._split_stacked(index, experts)
        for other in set(range(experts.count)).difference(held):
            for name in (*into, names.down):
                self._checkpoint.skip(name.format(index, other))
        gates = [tuple(name.format(index, each) for name in into) for each in held]
        downs = [(names.down.format(index, each),) for each in held]
        shared_gate_up, shared_down = None, None
        if experts.shared_size:
            shared_gate_up = self._gate_up((names.shared_gate, names.shared_up), index, experts.shared_size, False)
            shared_down = self._share(names.shared_down.format(index), hidden, experts.shared_size)
        weights = ExpertWeights(
            router=self._router(index, experts),
            correction=self._correction(index, experts),
            gate_up=self._of_experts(gates, size, hidden),
            down=self._of_experts(downs, hidden, size),
            gate_up_bias=self._biases_of_experts(gates, size) if experts.biases else None,
            down_bias=self._biases_of_experts(downs, hidden) if experts.biases else None,
            shared_gate_up=shared_gate_up,
            shared_down=shared_down,
            factors=self._vector(names.factors.format(index), experts.count).float() if experts.has_factors else None,
        )
        return self._backend.experts(experts, geometry.activation, weights, group)

    def _router(self, index: int, experts: Experts) -> Linear:
        """The router, never quantized, with the shared expert's gate as its last row; every rank holds all of it."""
        names, hidden = self._names.experts, self._geometry.hidden_size
        rows = [Rows(names.router.format(index), experts.count, (0, experts.count))]
        if experts.shared_as == "gated":
            rows.append(Rows(names.shared_expert_gate.format(index), 1, (0, 1)))
        floats = FloatReader(self._checkpoint, self._geometry.dtype)

        def read() -> list[Weight]:
            every = joined([self._rows(floats, each, hidden) for each in rows])
            return [with_outputs(each, experts.count + 1) for each in every] if experts.shared_as == "mean" else every

        (weight,) = self._weights(rows[0].name, read)
        return self._backend.head(weight, self._bias(rows[:1]) if experts.router_bias else None)

    def _correction(self, index: int, experts: Experts) -> Tensor | None:
        name = self._names.experts.correction.format(index)
        if not experts.has_correction:
            return None
        entry = self._checkpoint.entries.get(name)
        shape = (1, experts.count) if entry is not None and len(entry.shape) == 2 else (experts.count,)
        return self._tensor(name, lambda: self._checkpoint.read(name, shape).to(self._device).float().flatten())

    def _of_experts(self, names: Sequence[tuple[str, ...]], outputs: int, inputs: int) -> Weight:
        """The matrices of this rank's experts; `names` are those of the projections that each joins."""
        part, reader = MatrixPart((outputs, inputs), 0, 0, outputs), self._source.projections

        def read() -> list[Weight]:
            each = [joined([self._matrix(reader, name, part) for name in own]) for own in names]
            return [stacked_experts(names[0][0], [weight for weights in each for weight in weights])]

        (weight,) = self._weights(names[0][0], read)
        return weight

    def _biases_of_experts(self, names: Sequence[tuple[str, ...]], outputs: int) -> Tensor:
        return torch.stack([self._bias([Rows(name, outputs, (0, outputs)) for name in own]) for own in names])

    def _split_stacked(self, index: int, experts: Experts) -> None:
        """Give the parts of tensors with one matrix for each expert the names of each expert's projections."""
        names, hidden, size = self._names.experts, self._geometry.hidden_size, experts.intermediate_size
        both, down = names.stacked_gate_up.format(index), names.stacked_down.format(index)
        if not self._checkpoint.entries.keys() & {both, f"{both}_blocks"}:
            return
        halves = ((0, None, 2), (1, None, 2)) if names.are_interleaved else ((0, size, 1), (size, 2 * size, 1))
        projections = [(names.gate, both, 2 * size, hidden, halves[0]), (names.up, both, 2 * size, hidden, halves[1])]
        projections.append((names.down, down, hidden, size, (0, None, 1)))
        is_transposed, entry = names.are_transposed, self._checkpoint.entries.get(down)
        if is_transposed is None:
            is_transposed = entry is not None and entry.shape[1:] == [size, hidden]
        for name, stacked, outputs, inputs, rows in projections:
            matrix = (inputs, outputs) if is_transposed else (outputs, inputs)
            for each in range(experts.count):
                own = name.format(index, each)
                part = StackedPart(stacked, (experts.count, *matrix), each, rows, is_transposed)
                self._checkpoint.split(f"{own}.weight", part)
                biases = StackedPart(f"{stacked}_bias", (experts.count, outputs), each, rows, False)
                self._checkpoint.split(f"{own}.bias", biases)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
