"""Reads the mixers of Mamba 1."""

from functools import cached_property

import torch
from torch import Tensor

from ...geometry.recurrent.mamba1 import Mamba1Layer
from ...layers.recurrent.keeping import KeepingSelectiveScan
from ...layers.recurrent.recurrences import SelectiveScan
from ...layers.recurrent.weights import Mamba1, PartNorms
from ...mixers.mamba1 import Mamba1Mixer
from ...mixers.mixer import Mixer
from ..matrix_rows import Rows, Span
from .mamba2_reader import Mamba2Reader


class Mamba1Reader(Mamba2Reader):
    """Channels are divided among the ranks; the product from them to steps, b and c is summed over the ranks."""

    @cached_property
    def _selective(self) -> SelectiveScan:
        return KeepingSelectiveScan(self._backend.selective_scan(), self._recurrences)

    def _mamba1(self, index: int, kind: Mamba1Layer) -> Mixer:
        names, hidden, inner = self._names.mamba1, self._geometry.hidden_size, kind.channels
        first, last = span = self._even_span(inner)
        into, steps = names.into.format(index), names.steps.format(index)
        x, gates = ([Rows(into, 2 * inner, (at + first, at + last))] for at in (0, inner))
        return Mamba1Mixer(
            layer=index,
            sizes=kind.of_rank(self._group.size),
            into=self._column_parallel(x, hidden, kind.has_bias),
            convolution=self._convolution(
                [Rows(names.convolution.format(index), inner, span)], kind.width, kind.has_conv_bias
            ),
            parts=self._row_parallel(names.parts.format(index), kind.parts_size, inner, False),
            norms=self._part_norms(index, kind),
            steps=self._column_parallel([Rows(steps, inner, span)], kind.step_rank, False),
            scan=self._scan(index, kind, span),
            gates=self._column_parallel(gates, hidden, kind.has_bias, f"{into} (gates)"),
            output=self._row_parallel(names.output.format(index), hidden, inner, kind.has_bias),
            recurrences=self._recurrences,
            selective=self._selective,
        )

    def _scan(self, index: int, kind: Mamba1Layer, channels: Span) -> Mamba1:
        names, here = self._names.mamba1, slice(*channels)
        d = self._per_head(names.d.format(index), kind.channels)[here].contiguous()
        dt_bias = self._per_head(f"{names.steps.format(index)}.bias", kind.channels)[here].contiguous()
        return Mamba1(self._rates(names.a_log.format(index), kind)[here].contiguous(), d, dt_bias)

    def _rates(self, name: str, kind: Mamba1Layer) -> Tensor:
        """-exp(A_log), [channels, state_size] float32, not rounded to the model's dtype; GGUF files have it as A."""
        shape = kind.channels, kind.state_size
        if (rates := name.removesuffix("_log")) in self._checkpoint.entries:
            return self._tensor(rates, lambda: self._read_tensor(rates, shape, dtype=torch.float32))
        return self._tensor(name, lambda: -self._read_tensor(name, shape, dtype=torch.float32).exp())

    def _part_norms(self, index: int, kind: Mamba1Layer) -> PartNorms:
        names, weight, sizes = self._names.mamba1, None, (kind.step_rank, kind.state_size, kind.state_size)
        if kind.part_norms == "plain":
            weight = torch.ones(sum(sizes), device=self._device)
        elif kind.part_norms == "weighted":
            named = zip((names.steps_norm, names.b_norm, names.c_norm), sizes, strict=True)
            weight = torch.cat([self._vector(name.format(index), size).float() for name, size in named])
        return PartNorms(kind.step_rank, kind.state_size, weight, kind.norm_eps)
