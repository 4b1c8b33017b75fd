"""Reads the mixers of gated delta nets."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ....geometry.recurrent.gated_delta import GatedDeltaLayer
from ....layers.linear import Linear
from ....layers.recurrent.weights import GatedDelta, GatedNorm
from ....mixers.mixer import Mixer
from ....mixers.recurrent.gated_delta import GatedDeltaMixer, KimiDeltaMixer
from ...matrix_rows import Rows, Span, rows_of
from ..layer_reader import LayerReader
from .mamba2_reader import joined_spans
from .recurrent_parts import RecurrentParts

EPS = 1e-6  # of the norms of queries and keys


class GatedDeltaReader:
    """Key heads are divided among the ranks, each with the heads that read it.

    What decays and gates of Kimi delta attention are projected from is on every rank.
    """

    def __init__(self, reader: LayerReader, parts: RecurrentParts):
        self._reader = reader
        self._parts = parts

    def gated_delta(self, index: int, kind: GatedDeltaLayer) -> Mixer:
        reader = self._reader
        names, hidden, share = reader.names.gated_delta, reader.geometry.hidden_size, kind.of_rank(reader.group.size)
        rows = self._rows_by_key_head(index, kind) if names.by_key_head else self._rows_by_part(index, kind)
        heads = slice(*reader.even_span(kind.heads))
        bias = self._parts.per_head(names.dt_bias.format(index), kind.decays)[slice(*reader.even_span(kind.decays))]
        sizes = share.key_heads, kind.key_dim, kind.value_dim
        rates = self._parts.rates_of_heads(names.a_log.format(index), kind.heads)[heads]
        return GatedDeltaMixer(
            layer=index,
            sizes=share,
            into=reader.column_parallel(rows, hidden, False),
            convolution=self._parts.convolution(self._channels_of(index, kind), kind.width),
            delta=GatedDelta(rates, bias, *sizes, EPS, kind.max_beta, kind.lower_bound),
            norm=GatedNorm(
                self._weights_of_heads(index, kind),
                kind.value_dim,
                kind.norm_eps,
                gates_last=True,
                sigmoid_gates=kind.has_decays_of_elements,
            ),
            output=reader.row_parallel(names.output.format(index), hidden, kind.inner_size, False),
            recurrences=self._parts.recurrences,
        )

    def kimi_delta(self, index: int, kind: GatedDeltaLayer) -> KimiDeltaMixer:
        reader = self._reader
        names, hidden, of_keys = reader.names.gated_delta, reader.geometry.hidden_size, kind.heads * kind.key_dim
        rows = self._queries_keys_values((names.query, names.key, names.value), index, kind)
        rows.append(Rows(names.b.format(index), kind.heads, reader.even_span(kind.heads)))
        rows += [Rows(each.format(index), kind.rank, (0, kind.rank)) for each in (names.decays_down, names.gates_down)]
        weight = self._weights_of_heads(index, kind)
        return KimiDeltaMixer(
            layer=index,
            sizes=kind.of_rank(reader.group.size),
            into=reader.column_parallel(rows, hidden, False),
            convolution=self._parts.convolution(self._channels_of(index, kind), kind.width),
            decays=self._projected_up(names.decays_up.format(index), of_keys, kind.rank),
            delta=self._delta_of_elements(index, kind),
            gates=self._projected_up(names.gates_up.format(index), kind.inner_size, kind.rank),
            norm=GatedNorm(weight, kind.value_dim, kind.norm_eps, gates_last=True, sigmoid_gates=True),
            output=reader.row_parallel(names.output.format(index), hidden, kind.inner_size, False),
            recurrences=self._parts.recurrences,
        )

    def _projected_up(self, name: str, size: int, rank: int) -> Linear:
        return self._reader.column_parallel([Rows(name, size, self._reader.even_span(size))], rank, False)

    def _delta_of_elements(self, index: int, kind: GatedDeltaLayer) -> GatedDelta:
        reader = self._reader
        names, of_keys, heads = reader.names.gated_delta, kind.heads * kind.key_dim, reader.even_span(kind.heads)
        bias = self._parts.per_head(names.dt_bias.format(index), of_keys)[slice(*reader.even_span(of_keys))]
        share = kind.of_rank(reader.group.size)
        sizes = share.key_heads, kind.key_dim, kind.value_dim
        rates = self._parts.rates_of_heads(names.a_log.format(index), kind.heads, (1, 1, kind.heads, 1))[slice(*heads)]
        return GatedDelta(rates, bias, *sizes, EPS, kind.max_beta)

    def _weights_of_heads(self, index: int, kind: GatedDeltaLayer) -> Tensor:
        """Of the norm: the same for each of this rank's heads."""
        reader = self._reader
        weight = reader.vector(reader.names.gated_delta.norm.format(index), kind.value_dim).float()
        return weight.repeat(kind.of_rank(reader.group.size).heads)

    def _rows_by_part(self, index: int, kind: GatedDeltaLayer) -> list[Rows]:
        """Queries, keys and values, then gates, b and alpha."""
        names = self._reader.names.gated_delta
        if names.of_all:
            sizes = (*_sizes(kind), kind.inner_size, kind.heads, kind.decays)
            spans = joined_spans(self._spans(sizes))
            return [Rows(names.of_all.format(index), sum(sizes), span) for span in spans]
        others = (names.gates, kind.inner_size), (names.b, kind.heads), (names.alpha, kind.decays)
        rows = [Rows(name.format(index), size, self._reader.even_span(size)) for name, size in others]
        return self._queries_keys_values((names.query, names.key, names.value), index, kind) + rows

    def _queries_keys_values(self, names: Sequence[str], index: int, kind: GatedDeltaLayer) -> list[Rows]:
        """Of one matrix, if the names are the same, or of three."""
        each = [name.format(index) for name in names]
        if len(set(each)) == 1:
            return [Rows(each[0], kind.channels, span) for span in joined_spans(self._spans(_sizes(kind)))]
        return [Rows(name, size, self._reader.even_span(size)) for name, size in zip(each, _sizes(kind), strict=True)]

    def _channels_of(self, index: int, kind: GatedDeltaLayer) -> list[Rows]:
        """The filters, of one tensor or of three.

        transformers saves three equal parts, whatever the sizes of queries, keys and values.
        """
        reader = self._reader
        names, entries = reader.names.gated_delta.convolutions, reader.checkpoint.entries
        each = [name.format(index) for name in names]
        found = [entries[weight].shape for name in each if (weight := f"{name}.weight") in entries]
        ends = list(accumulate(shape[0] if shape else 0 for shape in found))
        if len(set(each)) == 1 or len(found) < len(each) or ends[-1] != kind.channels:
            return self._queries_keys_values(names, index, kind)
        rows = [
            Rows(name, end - start, (max(first, start) - start, min(last, end) - start))
            for first, last in joined_spans(self._spans(_sizes(kind)))
            for name, start, end in zip(each, [0, *ends[:-1]], ends, strict=True)
            if max(first, start) < min(last, end)
        ]
        for name in set(each).difference(part.name for part in rows):
            reader.checkpoint.skip(name)
        return rows

    def _spans(self, sizes: Sequence[int]) -> list[Span]:
        """Of this rank's share of each part in a matrix of parts with these rows."""
        starts = accumulate(sizes[:-1], initial=0)
        each = [(start, self._reader.even_span(size)) for start, size in zip(starts, sizes, strict=True)]
        return [(start + first, start + last) for start, (first, last) in each]

    def _rows_by_key_head(self, index: int, kind: GatedDeltaLayer) -> list[Rows]:
        """The same of files that have them by key head."""
        names, key_heads = self._reader.names.gated_delta, torch.arange(*self._reader.even_span(kind.key_heads))
        sharing, key = kind.heads // kind.key_heads, kind.key_dim
        values = sharing * kind.value_dim
        size = 2 * key + 2 * values
        parts = (0, key), (key, key), (2 * key, values), (2 * key + values, values)
        rows = torch.cat([(key_heads.unsqueeze(1) * size + at + torch.arange(n)).flatten() for at, n in parts])
        of_gates = torch.cat([rows_of(2 * key_heads + half, torch.arange(sharing)) for half in range(2)])
        into, gates = names.by_key_head.format(index), names.gates_by_key_head.format(index)
        return [Rows.chosen(into, kind.key_heads * size, rows), Rows.chosen(gates, 2 * kind.heads, of_gates)]


def _sizes(kind: GatedDeltaLayer) -> tuple[int, int, int]:
    """Rows of all queries, of all keys and of all values."""
    of_keys = kind.key_heads * kind.key_dim
    return of_keys, of_keys, kind.inner_size
