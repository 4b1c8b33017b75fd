"""Reads the mixers of lightning attention."""

import torch

from ....geometry.layer_options import alibi_slopes
from ....geometry.recurrent.lightning import LightningLayer
from ....layers.ops import Ops
from ....layers.recurrent.weights import GatedNorm, Mamba2
from ....mixers.recurrent.lightning import LightningMixer
from ....mixers.recurrent.norm_gate import NormGate
from ...matrix_rows import Rows, rows_of
from ..layer_reader import LayerReader
from .recurrent_parts import RecurrentParts

ALWAYS_1 = (1.0, 1.0)  # limits of Mamba 2's steps


class LightningReader:
    """Heads are divided among the ranks; each normalises all."""

    def __init__(self, reader: LayerReader, parts: RecurrentParts, ops: Ops):
        self._reader = reader
        self._parts = parts
        self._ops = ops

    def read(self, index: int, kind: LightningLayer) -> LightningMixer:
        reader, inner = self._reader, kind.inner_size
        names, hidden = reader.names.lightning, reader.geometry.hidden_size
        scan = self._scan(kind)
        weight = reader.vector(names.norm.format(index), inner).float()
        norm = GatedNorm(weight, inner, kind.norm_eps, gates_last=True, sigmoid_gates=True)
        return LightningMixer(
            layer=index,
            into=reader.column_parallel(self._values_keys_queries(index, kind), hidden, False),
            scan=scan,
            steps=torch.zeros(1, scan.heads, dtype=reader.geometry.dtype, device=reader.device),
            gates=reader.column_parallel(
                [Rows(names.gates.format(index), inner, reader.even_span(inner))], hidden, False
            ),
            gate=NormGate(norm, self._parts.recurrences, reader.group),
            output=reader.row_parallel(names.output.format(index), hidden, inner, False),
            ops=self._ops,
            recurrences=self._parts.recurrences,
        )

    def _values_keys_queries(self, index: int, kind: LightningLayer) -> list[Rows]:
        """The file has of each head its query, its key and its value."""
        heads, elements = torch.arange(*self._reader.even_span(kind.heads)), torch.arange(kind.head_dim)
        rows = torch.cat([rows_of(3 * heads + part, elements) for part in (2, 1, 0)])
        return [Rows.chosen(self._reader.names.lightning.into.format(index), 3 * kind.inner_size, rows)]

    def _scan(self, kind: LightningLayer) -> Mamba2:
        reader = self._reader
        slopes = alibi_slopes(kind.heads)[slice(*reader.even_span(kind.heads))].to(reader.device)
        nothing = torch.zeros_like(slopes)
        return Mamba2(-kind.rate * slopes, nothing, nothing, kind.head_dim, len(slopes), kind.head_dim, ALWAYS_1)
