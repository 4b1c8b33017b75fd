"""Reads the mixers of Mamba 2."""

from collections.abc import Sequence

from ....geometry.recurrent.mamba2 import Mamba2Layer
from ....layers.recurrent.weights import GatedNorm, Mamba2
from ....mixers.recurrent.mamba2 import Mamba2Mixer
from ....mixers.recurrent.norm_gate import Gate, NormGate
from ...matrix_rows import Rows, Span
from ..layer_reader import LayerReader
from .recurrent_parts import RecurrentParts


class Mamba2Reader:
    """Heads are divided among the ranks, each with its group's inputs and outputs of the state."""

    def __init__(self, reader: LayerReader, parts: RecurrentParts):
        self._reader = reader
        self._parts = parts

    def read(self, index: int, kind: Mamba2Layer) -> Mamba2Mixer:
        reader = self._reader
        names, hidden, group = reader.names.mamba2, reader.geometry.hidden_size, reader.group
        share, inner = kind.of_rank(group.size), kind.inner_size
        into, convolution = names.into.format(index), names.convolution.format(index)
        gates, *of_conv, steps = _spans(kind, group.rank, group.size)
        total = inner + kind.channels + kind.heads
        rows = [Rows(into, total, span) for span in joined_spans((gates, *of_conv, steps))]
        here = slice(*kind.heads_of(group.rank, group.size))
        d, dt_bias = (self._parts.per_head(name.format(index), kind.heads)[here] for name in (names.d, names.dt_bias))
        rates = self._parts.rates_of_heads(names.a_log.format(index), kind.heads)[here]
        return Mamba2Mixer(
            layer=index,
            sizes=share,
            into=reader.column_parallel(rows, hidden, kind.has_bias),
            convolution=self._parts.convolution(
                [Rows(convolution, kind.channels, (a - inner, b - inner)) for a, b in of_conv],
                kind.width,
                kind.has_conv_bias,
            ),
            scan=Mamba2(rates, d, dt_bias, kind.head_dim, share.groups, kind.state_size, kind.dt_limits),
            gate=self._gate(names.norm.format(index), kind),
            output=reader.row_parallel(names.output.format(index), hidden, inner, kind.has_bias),
            recurrences=self._parts.recurrences,
        )

    def _gate(self, name: str, kind: Mamba2Layer) -> Gate:
        """With a norm of this rank's elements, if these are whole groups; else of all."""
        reader = self._reader
        if kind.gating == "alone":
            return self._parts.recurrences.silu_gated
        weight, (first, last) = (
            reader.vector(name, kind.inner_size).float(),
            reader.even_span(kind.inner_size),
        )
        if (last - first) % kind.norm_size == 0:
            weight = weight[first:last].contiguous()
        norm = GatedNorm(weight, kind.norm_size, reader.geometry.norm_eps, kind.gating == "after_norm")
        return NormGate(norm, self._parts.recurrences, reader.group)


def _spans(kind: Mamba2Layer, rank: int, tp_size: int) -> list[Span]:
    """The rows of the first projection that a rank holds: gates, x, b, c and steps."""
    heads, groups = kind.heads_of(rank, tp_size), kind.groups_of(rank, tp_size)
    inner, of_groups, spans, at = kind.inner_size, kind.groups * kind.state_size, list[Span](), 0
    parts = [(heads, kind.head_dim, inner)] * 2 + [(groups, kind.state_size, of_groups)] * 2 + [(heads, 1, kind.heads)]
    for (first, last), size, total in parts:
        spans.append((at + first * size, at + last * size))
        at += total
    return spans


def joined_spans(spans: Sequence[Span]) -> list[Span]:
    """The same rows, adjacent spans as one."""
    found = [spans[0]]
    for first, last in spans[1:]:
        if found[-1][1] == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found
