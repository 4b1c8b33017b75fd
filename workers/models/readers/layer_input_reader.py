"""Reads the inputs of single layers: their table, projections and norms; and the scalars of layers."""

import math
from dataclasses import replace

import torch

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.weight_forms import Weight
from ...geometry.layer_options import LayerInputs as Sizes
from ...layers.embedding import Table, VocabularyEmbedding
from ...layers.feed_forward import InputGate, LayerEnd, LayerInputs
from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.ops import Ops
from ..matrix_rows import Rows
from .feed_forward_reader import ProjectionReader
from .weight_reader import VOCABULARY_MULTIPLE


class LayerInputReader(ProjectionReader):
    """Every rank holds all of them but the table, whose rows are divided like those of the embedding."""

    def _layer_inputs(self, ops: Ops) -> LayerInputs | None:
        geometry, names = self._geometry, self._names.layer_inputs
        if (sizes := geometry.layer_inputs) is None:
            return None
        width = geometry.num_layers * sizes.size
        # Both parts are divided by sqrt(2). The projection's factor 1 / sqrt(hidden_size) becomes one of epsilon.
        table = VocabularyEmbedding(self._input_table(sizes, width), self._group)
        weight = self._vector(names.norm, sizes.size).float() / math.sqrt(2)
        norm = RMSNorm(weight, geometry.norm_eps * geometry.hidden_size)
        return LayerInputs(sizes.size, table, self._whole(names.projection, width, geometry.hidden_size), norm, ops)

    def _layer_end(self, index: int) -> LayerEnd | None:
        geometry, names = self._geometry, self._names.layer_inputs
        gate, scalar = None, None
        if geometry.layer_inputs is not None:
            size, hidden = geometry.layer_inputs.size, geometry.hidden_size
            gate = InputGate(
                gate=self._whole(names.gate.format(index), size, hidden),
                activation=replace(geometry.activation, is_gated=True),
                projection=self._whole(names.output.format(index), hidden, size),
                norm=self._norm(names.output_norm.format(index), hidden),
            )
        if geometry.has_layer_scalars:
            scalar = self._vector(names.scalar.format(index), 1).float().expand(geometry.hidden_size).contiguous()
        return None if gate is None and scalar is None else LayerEnd(gate, scalar)

    def _whole(self, name: str, rows: int, columns: int) -> Linear:
        return self._column_parallel([Rows(name, rows, (0, rows))], columns, False)

    def _input_table(self, sizes: Sizes, width: int) -> Table:
        name, share = self._names.layer_inputs.table, self._group.size * VOCABULARY_MULTIPLE
        vocab_size = max(sizes.vocab_size, self._geometry.vocab_size)
        rows = -(-vocab_size // share) * VOCABULARY_MULTIPLE
        first, end = (min(rank * rows, vocab_size) for rank in (self._group.rank, self._group.rank + 1))

        def read() -> Weight:
            shape, last = (sizes.vocab_size, width), min(end, sizes.vocab_size)
            if last == end:
                return self._table_part(name, MatrixPart(shape, 0, first, end), rows)
            own = self._checkpoint.read(name, shape, 0, min(first, last), last)
            others = end - first - len(own)
            of_others = self._checkpoint.read(name, shape, 0, 0, 1).expand(others, -1)
            return self._table_of(name, torch.cat([own, of_others]), rows)

        (weight,) = self._weights(name, lambda: [read()])
        return self._backend.table(weight, "layer inputs", math.sqrt(sizes.size) / math.sqrt(2))
