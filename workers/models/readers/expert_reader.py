"""Reads the experts that this rank holds, and what chooses them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import FloatReader, MatrixPart
from ...checkpoint.stacked_experts import StackedPart, stacked_experts
from ...checkpoint.weight_forms import Weight, joined, with_outputs
from ...geometry.experts import Experts
from ...layers.attention import AttentionExperts, AttentionExpertWeights
from ...layers.feed_forward import ExpertWeights, RoutedFeedForward
from ...layers.linear import Linear
from ..matrix_rows import Rows
from .layer_reader import LayerReader


class ExpertReader:
    """Reads the mixture of experts of a layer."""

    def __init__(self, reader: LayerReader):
        self._reader = reader

    def read(self, index: int, experts: Experts) -> RoutedFeedForward:
        reader = self._reader
        geometry, names, group = reader.geometry, reader.names.experts, reader.group
        held, hidden, size = experts.held_by(group.rank, group.size), geometry.hidden_size, experts.intermediate_size
        into = reader.of_activation((names.gate, names.up))
        self._split_stacked(index, experts)
        for other in set(range(experts.choices)).difference(held):  # files may have unused matrices of identities
            for name in (*into, names.down):
                reader.checkpoint.skip(name.format(index, other))
        gates = [tuple(name.format(index, each) for name in into) for each in held]
        downs = [(names.down.format(index, each),) for each in held]
        shared_gate_up, shared_down = None, None
        if experts.shared_size:
            shared = names.shared_gate, names.shared_up
            shared_gate_up = reader.gate_up(shared, index, experts.shared_size, False)
            shared_down = reader.share(names.shared_down.format(index), hidden, experts.shared_size)
        weights = ExpertWeights(
            router=self.router(index, experts),
            correction=self._correction(index, experts),
            gate_up=self._of_experts(gates, size, hidden),
            down=self._of_experts(downs, hidden, size),
            gate_up_bias=self._biases_of_experts(gates, size) if experts.biases else None,
            down_bias=self._output_biases(index, experts, downs),
            shared_gate_up=shared_gate_up,
            shared_down=shared_down,
            factors=reader.vector(names.factors.format(index), experts.count).float() if experts.has_factors else None,
        )
        return reader.backend.experts(experts, geometry.activation, weights, group)

    def attention(self, index: int, experts: Experts) -> AttentionExperts:
        """Those that project the queries of all KV heads, and outputs."""
        reader, group, names = self._reader, self._reader.group, self._reader.names.attention_experts
        hidden, size = reader.geometry.hidden_size, experts.intermediate_size
        stacked = (names.up, names.stacked_gate_up, (size, hidden)), (names.down, names.stacked_down, (hidden, size))
        for own, name, shape in stacked:
            for each in range(experts.count):
                part = StackedPart(name.format(index), (experts.count, *shape), each, (0, None, 1), False)
                reader.checkpoint.split(f"{own.format(index, each)}.weight", part)
        held = experts.held_by(group.rank, group.size)
        for other in set(range(experts.count)).difference(held):
            for own in (names.up, names.down):
                reader.checkpoint.skip(own.format(index, other))
        weights = AttentionExpertWeights(
            router=self._head_of([Rows(names.router.format(index), experts.count, (0, experts.count))]),
            queries=self._of_experts([(names.up.format(index, each),) for each in held], size, hidden),
            output=self._of_experts([(names.down.format(index, each),) for each in held], hidden, size),
            bias=self._common_bias(names.bias.format(index), len(held)),
        )
        return reader.backend.attention_experts(experts, weights, group)

    def router(self, index: int, experts: Experts) -> Linear:
        """The router, never quantized, with the shared expert's gate as its last row; every rank holds all of it."""
        reader = self._reader
        names = reader.names.experts
        rows = [Rows(names.router.format(index), experts.choices, (0, experts.choices))]
        if experts.shared_as == "gated":
            rows.append(Rows(names.shared_expert_gate.format(index), 1, (0, 1)))
        return self._head_of(rows, experts if experts.shared_as == "mean" else None, has_bias=experts.router_bias)

    def _head_of(self, rows: list[Rows], padded: Experts | None = None, *, has_bias: bool = False) -> Linear:
        """`padded`: with a row of zeros behind those of experts."""
        reader = self._reader
        floats = FloatReader(reader.checkpoint, reader.geometry.dtype)

        def read() -> list[Weight]:
            every = joined([reader.rows(floats, each, reader.geometry.hidden_size) for each in rows])
            return every if padded is None else [with_outputs(each, padded.count + 1) for each in every]

        (weight,) = reader.weights(rows[0].name, read)
        return reader.backend.head(weight, reader.bias(rows[:1]) if has_bias else None)

    def _correction(self, index: int, experts: Experts) -> Tensor | None:
        reader = self._reader
        name = reader.names.experts.correction.format(index)
        if not experts.has_correction:
            return None
        entry = reader.checkpoint.entries.get(name)
        if entry is None and reader.names.experts.may_lack_correction:
            return None
        shape = (1, experts.choices) if entry is not None and len(entry.shape) == 2 else (experts.choices,)
        return reader.tensor(name, lambda: reader.checkpoint.read(name, shape).to(reader.device).float().flatten())

    def _of_experts(self, names: Sequence[tuple[str, ...]], outputs: int, inputs: int) -> Weight:
        """The matrices of this rank's experts; `names` are those of the projections that each joins."""
        reader, part = self._reader, MatrixPart((outputs, inputs), 0, 0, outputs)

        def read() -> list[Weight]:
            each = [joined([reader.matrix(reader.source.projections, name, part) for name in own]) for own in names]
            return [stacked_experts(names[0][0], [weight for weights in each for weight in weights])]

        (weight,) = reader.weights(names[0][0], read)
        return weight

    def _output_biases(self, index: int, experts: Experts, downs: Sequence[tuple[str, ...]]) -> Tensor | None:
        if experts.has_common_bias:
            return self._common_bias(self._reader.names.experts.bias.format(index), len(downs))
        return self._biases_of_experts(downs, self._reader.geometry.hidden_size) if experts.biases else None

    def _common_bias(self, name: str, count: int) -> Tensor:
        """That of the sum of outputs as one of each expert, because their weights add up to 1."""
        return self._reader.vector(name, self._reader.geometry.hidden_size).repeat(count, 1)

    def _biases_of_experts(self, names: Sequence[tuple[str, ...]], outputs: int) -> Tensor:
        return torch.stack([self._reader.bias([Rows(name, outputs, (0, outputs)) for name in own]) for own in names])

    def _split_stacked(self, index: int, experts: Experts) -> None:
        """Give the parts of tensors with one matrix for each expert the names of each expert's projections."""
        reader = self._reader
        names, hidden, size = reader.names.experts, reader.geometry.hidden_size, experts.intermediate_size
        both, down = names.stacked_gate_up.format(index), names.stacked_down.format(index)
        if not reader.checkpoint.entries.keys() & {both, f"{both}_blocks"}:
            return
        if names.stacked_up:
            self._split_flat(index, experts)
            return
        halves = ((0, None, 2), (1, None, 2)) if names.are_interleaved else ((0, size, 1), (size, 2 * size, 1))
        projections = [(names.gate, both, 2 * size, hidden, halves[0]), (names.up, both, 2 * size, hidden, halves[1])]
        projections.append((names.down, down, hidden, size, (0, None, 1)))
        is_transposed, entry = names.are_transposed, reader.checkpoint.entries.get(down)
        if is_transposed is None:
            is_transposed = entry is not None and entry.shape[1:] == [size, hidden]
        for name, stacked, outputs, inputs, rows in projections:
            matrix = (inputs, outputs) if is_transposed else (outputs, inputs)
            for each in range(experts.count):
                own = name.format(index, each)
                part = StackedPart(stacked, (experts.count, *matrix), each, rows, is_transposed)
                reader.checkpoint.split(f"{own}.weight", part)
                biases = StackedPart(f"{stacked}_bias", (experts.count, outputs), each, rows, False)
                reader.checkpoint.split(f"{own}.bias", biases)

    def _split_flat(self, index: int, experts: Experts) -> None:
        """The same for tensors without a dimension for experts, each with the rows of one kind of matrix in turn."""
        reader, names = self._reader, self._reader.names.experts
        shape = experts.count, experts.intermediate_size, reader.geometry.hidden_size
        stacked = names.stacked_gate_up, names.stacked_up, names.stacked_down
        for own, name in zip((names.gate, names.up, names.down), stacked, strict=True):
            for each in range(experts.count):
                is_down = own == names.down
                part = StackedPart(name.format(index), shape, each, (0, None, 1), is_down, is_flat=True)
                reader.checkpoint.split(f"{own.format(index, each)}.weight", part)
