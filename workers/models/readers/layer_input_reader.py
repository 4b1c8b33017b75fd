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
from .layer_reader import LayerReader
from .weight_reader import VOCABULARY_MULTIPLE


class LayerInputReader:
    """Every rank holds all of them but the table, whose rows are divided like those of the embedding."""

    def __init__(self, reader: LayerReader):
        self._reader = reader

    def inputs(self, ops: Ops) -> LayerInputs | None:
        reader = self._reader
        geometry, names = reader.geometry, reader.names.layer_inputs
        if (sizes := geometry.layer_inputs) is None:
            return None
        width = geometry.num_layers * sizes.size
        # Both parts are divided by sqrt(2). The projection's factor 1 / sqrt(hidden_size) becomes one of epsilon.
        table = VocabularyEmbedding(self._input_table(sizes, width), reader.group)
        weight = reader.vector(names.norm, sizes.size).float() / math.sqrt(2)
        norm = RMSNorm(weight, geometry.norm_eps * geometry.hidden_size)
        return LayerInputs(sizes.size, table, self.whole(names.projection, width, geometry.hidden_size), norm, ops)

    def end(self, index: int) -> LayerEnd | None:
        reader = self._reader
        geometry, names = reader.geometry, reader.names.layer_inputs
        gate, scalar = None, None
        if geometry.layer_inputs is not None:
            size, hidden = geometry.layer_inputs.size, geometry.hidden_size
            gate = InputGate(
                gate=self.whole(names.gate.format(index), size, hidden),
                activation=replace(geometry.activation, is_gated=True),
                projection=self.whole(names.output.format(index), hidden, size),
                norm=reader.norm(names.output_norm.format(index), hidden),
            )
        if geometry.has_layer_scalars:
            scalar = reader.vector(names.scalar.format(index), 1).float().expand(geometry.hidden_size).contiguous()
        return LayerEnd(gate, scalar) if gate or scalar is not None else None

    def whole(self, name: str, rows: int, columns: int) -> Linear:
        return self._reader.column_parallel([Rows(name, rows, (0, rows))], columns, False)

    def _input_table(self, sizes: Sizes, width: int) -> Table:
        reader = self._reader
        name, share = reader.names.layer_inputs.table, reader.group.size * VOCABULARY_MULTIPLE
        vocab_size = max(sizes.vocab_size, reader.geometry.vocab_size)
        rows = -(-vocab_size // share) * VOCABULARY_MULTIPLE
        first, end = (min(rank * rows, vocab_size) for rank in (reader.group.rank, reader.group.rank + 1))

        def read() -> Weight:
            shape, last = (sizes.vocab_size, width), min(end, sizes.vocab_size)
            if last == end:
                return reader.table_part(name, MatrixPart(shape, 0, first, end), rows)
            own = reader.checkpoint.read(name, shape, 0, min(first, last), last)
            others = end - first - len(own)
            of_others = reader.checkpoint.read(name, shape, 0, 0, 1).expand(others, -1)
            return reader.table_of(name, torch.cat([own, of_others]), rows)

        (weight,) = reader.weights(name, lambda: [read()])
        return reader.backend.table(weight, "layer inputs", math.sqrt(sizes.size) / math.sqrt(2))
