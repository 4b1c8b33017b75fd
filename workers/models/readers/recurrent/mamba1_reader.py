"""Reads the mixers of Mamba 1."""

from functools import cached_property

import torch
from torch import Tensor

from ....geometry.recurrent.mamba1 import Mamba1Layer
from ....layers.recurrent.keeping import KeepingSelectiveScan
from ....layers.recurrent.recurrences import SelectiveScan
from ....layers.recurrent.weights import Mamba1, PartNorms
from ....mixers.mixer import Mixer
from ....mixers.recurrent.mamba1 import Mamba1Mixer
from ...matrix_rows import Rows, Span
from ..layer_reader import LayerReader
from .recurrent_parts import RecurrentParts


class Mamba1Reader:
    """Channels are divided among the ranks; the product from them to steps, b and c is summed over the ranks."""

    def __init__(self, reader: LayerReader, parts: RecurrentParts):
        self._reader = reader
        self._parts = parts

    @cached_property
    def _selective(self) -> SelectiveScan:
        return KeepingSelectiveScan(self._reader.backend.selective_scan(), self._parts.recurrences)

    def read(self, index: int, kind: Mamba1Layer) -> Mixer:
        reader = self._reader
        names, hidden, inner = reader.names.mamba1, reader.geometry.hidden_size, kind.channels
        first, last = span = reader.even_span(inner)
        into, steps = names.into.format(index), names.steps.format(index)
        x, gates = ([Rows(into, 2 * inner, (at + first, at + last))] for at in (0, inner))
        return Mamba1Mixer(
            layer=index,
            sizes=kind.of_rank(reader.group.size),
            into=reader.column_parallel(x, hidden, kind.has_bias),
            convolution=self._parts.convolution(
                [Rows(names.convolution.format(index), inner, span)], kind.width, kind.has_conv_bias
            ),
            parts=reader.row_parallel(names.parts.format(index), kind.parts_size, inner, False),
            norms=self._part_norms(index, kind),
            steps=reader.column_parallel([Rows(steps, inner, span)], kind.step_rank, False),
            scan=self._scan(index, kind, span),
            gates=reader.column_parallel(gates, hidden, kind.has_bias, f"{into} (gates)"),
            output=reader.row_parallel(names.output.format(index), hidden, inner, kind.has_bias),
            recurrences=self._parts.recurrences,
            selective=self._selective,
        )

    def _scan(self, index: int, kind: Mamba1Layer, channels: Span) -> Mamba1:
        names, here = self._reader.names.mamba1, slice(*channels)
        d = self._parts.per_head(names.d.format(index), kind.channels)[here].contiguous()
        dt_bias = self._parts.per_head(f"{names.steps.format(index)}.bias", kind.channels)[here].contiguous()
        return Mamba1(self._rates(names.a_log.format(index), kind)[here].contiguous(), d, dt_bias)

    def _rates(self, name: str, kind: Mamba1Layer) -> Tensor:
        """-exp(A_log), [channels, state_size] float32, not rounded to the model's dtype; GGUF files have it as A."""
        reader = self._reader
        shape = kind.channels, kind.state_size
        if (rates := name.removesuffix("_log")) in reader.checkpoint.entries:
            return reader.tensor(rates, lambda: reader.read_tensor(rates, shape, dtype=torch.float32))
        return reader.tensor(name, lambda: -reader.read_tensor(name, shape, dtype=torch.float32).exp())

    def _part_norms(self, index: int, kind: Mamba1Layer) -> PartNorms:
        reader = self._reader
        names, weight, sizes = reader.names.mamba1, None, (kind.step_rank, kind.state_size, kind.state_size)
        if kind.part_norms == "plain":
            weight = torch.ones(sum(sizes), device=reader.device)
        elif kind.part_norms == "weighted":
            named = zip((names.steps_norm, names.b_norm, names.c_norm), sizes, strict=True)
            weight = torch.cat([reader.vector(name.format(index), size).float() for name, size in named])
        return PartNorms(kind.step_rank, kind.state_size, weight, kind.norm_eps)
