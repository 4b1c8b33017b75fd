"""Reads the mixers of gated delta nets, and the gates of attention."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...checkpoint.recurrent.gated_delta import GatedDeltaLayer
from ...layers.recurrent.weights import GatedDelta, GatedNorm
from ...mixers.attention import Attention
from ...mixers.gated_attention import GatedAttention
from ...mixers.gated_delta import GatedDeltaMixer
from ...mixers.mixer import Mixer
from ..matrix_rows import Rows, Span
from .mamba2_reader import Mamba2Reader, joined_spans

EPS = 1e-6  # of the norms of queries and keys


class GatedDeltaReader(Mamba2Reader):
    """Key heads are divided among the ranks, each with the heads that read it."""

    def _gated_delta(self, index: int, kind: GatedDeltaLayer) -> Mixer:
        names, hidden = self._names.gated_delta, self._geometry.hidden_size
        share, heads = kind.of_rank(self._group.size), slice(*self._even_span(kind.heads))
        vectors = (name.format(index) for name in (names.a_log, names.dt_bias))
        a_log, dt_bias = (self._per_head(name, kind.heads)[heads] for name in vectors)
        of_keys = kind.key_heads * kind.key_dim
        parts = (0, of_keys), (of_keys, of_keys), (2 * of_keys, kind.inner_size)
        spans = [(at + first, at + last) for at, size in parts for first, last in [self._even_span(size)]]
        rows = self._rows_by_key_head(index, kind) if names.by_key_head else self._rows_by_part(index, kind, spans)
        norm = self._vector(names.norm.format(index), kind.value_dim).float().repeat(share.heads)
        return GatedDeltaMixer(
            layer=index,
            sizes=share,
            into=self._column_parallel(rows, hidden, False),
            convolution=self._convolution(names.convolution.format(index), kind.channels, kind.width, spans),
            delta=GatedDelta(-a_log.exp(), dt_bias, share.key_heads, kind.key_dim, kind.value_dim, EPS),
            norm=GatedNorm(norm, kind.value_dim, self._geometry.norm_eps, gates_last=True),
            output=self._row_parallel(names.output.format(index), hidden, kind.inner_size, False),
            recurrences=self._recurrences,
        )

    def _rows_by_part(self, index: int, kind: GatedDeltaLayer, spans: Sequence[Span]) -> list[Rows]:
        """Queries, keys and values, whose `spans` are those of one matrix, then gates, b and alpha."""
        names, of_keys = self._names.gated_delta, kind.key_heads * kind.key_dim
        each = [name.format(index) for name in (names.query, names.key, names.value)]
        if len(set(each)) == 1:
            rows = [Rows(each[0], kind.channels, span) for span in joined_spans(spans)]
        else:
            sizes = zip(each, (of_keys, of_keys, kind.inner_size), strict=True)
            rows = [Rows(name, size, self._even_span(size)) for name, size in sizes]
        others = (names.gates, kind.inner_size), (names.b, kind.heads), (names.alpha, kind.heads)
        return rows + [Rows(name.format(index), size, self._even_span(size)) for name, size in others]

    def _rows_by_key_head(self, index: int, kind: GatedDeltaLayer) -> list[Rows]:
        """The same of files that have them by key head."""
        names, key_heads = self._names.gated_delta, torch.arange(*self._even_span(kind.key_heads))
        sharing, key = kind.heads // kind.key_heads, kind.key_dim
        values = sharing * kind.value_dim
        size = 2 * key + 2 * values
        parts = (0, key), (key, key), (2 * key, values), (2 * key + values, values)
        rows = torch.cat([(key_heads.unsqueeze(1) * size + at + torch.arange(n)).flatten() for at, n in parts])
        of_gates = torch.cat([_of(2 * key_heads + half, sharing) for half in range(2)])
        into, gates = names.by_key_head.format(index), names.gates_by_key_head.format(index)
        return [Rows.chosen(into, kind.key_heads * size, rows), Rows.chosen(gates, 2 * kind.heads, of_gates)]

    def _gated_attention(self, index: int, attention: Attention) -> Mixer:
        geometry, name = self._geometry, self._names.query.format(index)
        heads = torch.arange(*self._even_span(geometry.num_heads))
        rows = Rows.chosen(name, 2 * geometry.num_heads * geometry.head_dim, _of(2 * heads + 1, geometry.head_dim))
        gate = self._column_parallel([rows], geometry.hidden_size, False, f"{name} (gate)")
        return GatedAttention(attention, gate, self._recurrences)


def without_gates(queries: Rows, head_dim: int) -> Rows:
    """The rows of `queries` in a projection with a gate after each head's query."""
    start, stop = queries.span
    rows = torch.arange(start, stop) if queries.order is None else start + queries.order
    return Rows.chosen(queries.name, 2 * queries.total, rows + rows // head_dim * head_dim)


def _of(parts: Tensor, size: int) -> Tensor:
    """The rows of some `parts` [n] of `size` rows each."""
    return (parts.unsqueeze(1) * size + torch.arange(size)).flatten()
