"""Reads attention: its projections with their norms, its options, and the gates of its outputs."""

import math
from functools import cached_property

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionOptions, distance_buckets
from ...layers.attention import AttentionBackend, AttentionExperts
from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.ops import Ops
from ...mixers.attention import Attention, NarrowValues, SharedAttention
from ...mixers.attention_experts import MixtureOfHeads
from ...mixers.differential_attention import DifferentialAttention
from ...mixers.gated_attention import AnyAttention, GatedAttention
from ...mixers.mixer import Mixer
from ..matrix_rows import Rows, differential_rows, query_key_value_rows, rows_of, stacked_rows
from ..projected import ClippedLinear, ScaledLinear, WholeNorms
from .layer_reader import LayerReader
from .recurrent.recurrent_parts import RecurrentParts


class AttentionReader:
    """Heads are divided among the ranks."""

    def __init__(self, reader: LayerReader, parts: RecurrentParts, ops: Ops, backend: AttentionBackend):
        self._reader = reader
        self._parts = parts
        self._ops = ops
        self._backend = backend

    def read(self, index: int) -> Mixer:
        """The attention of a layer, with what the model adds to it."""
        geometry = self._reader.geometry
        if geometry.kv_source(index) != index:
            return self._shared(index)
        if geometry.is_differential:
            return self._differential(index)
        attention = self.attention(index)
        if geometry.value_dim is not None:
            factors = torch.full((geometry.value_dim,), geometry.value_scale, device=self._reader.device)
            return NarrowValues(attention, geometry.head_dim, factors)
        return self.gated(index, attention) if geometry.attention_gate else attention

    def attention(self, index: int) -> Attention:
        reader = self._reader
        norm = reader.geometry.qk_norm
        query_norm, key_norm = reader.head_norms(index)
        return Attention(
            layer=index,
            qkv=self.query_key_value(index),
            query_norm=query_norm,
            key_norm=key_norm,
            output=self._output(index),
            options=self.options(index),
            ops=self._ops,
            backend=self._backend,
            query_factors=reader.query_factors(index) if norm and norm.weighs_rotated_heads else None,
        )

    def _shared(self, index: int) -> SharedAttention:
        """That of a layer whose file may have the projection and norm of keys and values, which are not used."""
        reader = self._reader
        geometry, names = reader.geometry.of_layer(index), reader.names
        for unused in (names.key, names.value, names.key_norm.removesuffix(".weight")):
            reader.checkpoint.skip(unused.format(index))
        first, last = reader.even_span(geometry.num_heads)
        span = first * geometry.head_dim, last * geometry.head_dim
        query = Rows(names.query.format(index), geometry.num_heads * geometry.head_dim, span)
        return SharedAttention(
            layer=index,
            query=reader.column_parallel([query], geometry.hidden_size, geometry.biases.qkv),
            query_norm=reader.head_norms(index)[0],
            output=self._output(index),
            options=self.options(index),
            ops=self._ops,
            backend=self._backend,
        )

    def _differential(self, index: int) -> DifferentialAttention:
        reader = self._reader
        geometry, size = reader.geometry, reader.geometry.head_dim
        names = reader.names
        each = names.query.format(index), names.key.format(index), names.value.format(index)
        rows, own = differential_rows(each, geometry, reader.even_span(geometry.num_kv_heads // 2), index)
        product = reader.column_parallel(rows, geometry.hidden_size, geometry.biases.qkv)
        of_factor = [f"{names.differential.format(index)}{each}" for each in ("q1", "k1", "q2", "k2")]
        q1, k1, q2, k2 = (reader.vector(name, size // 2).double() for name in of_factor)
        initial = 0.8 - 0.6 * math.exp(-0.3 * index)
        weight = torch.full((size,), 1.0 - initial, device=reader.device)
        return DifferentialAttention(
            attention=Attention(
                layer=index,
                qkv=ScaledLinear(product, self._ops, own.float().to(reader.device)),
                query_norm=None,
                key_norm=None,
                output=self._output(index),
                options=self.options(index),
                ops=self._ops,
                backend=self._backend,
            ),
            first_size=geometry.num_heads // geometry.num_kv_heads * size,
            factor=float((q1 * k1).sum().exp() - (q2 * k2).sum().exp()) + initial,
            norm=RMSNorm(weight, geometry.norm_eps),
            recurrences=self._parts.recurrences,
        )

    def mixture(self, index: int, experts: AttentionExperts) -> MixtureOfHeads:
        """That of a layer whose experts project queries and outputs."""
        reader = self._reader
        geometry, names = reader.geometry, reader.names
        size, (first, last) = geometry.head_dim, reader.even_span(geometry.num_kv_heads)
        both = [names.key.format(index), names.value.format(index)]
        rows = stacked_rows(both, geometry.num_kv_heads * size, (first * size, last * size))
        return MixtureOfHeads(
            layer=index,
            keys_values=reader.column_parallel(rows, geometry.hidden_size, False),
            experts=experts,
            options=self.options(index),
            ops=self._ops,
            backend=self._backend,
        )

    def _output(self, index: int) -> Linear:
        reader = self._reader
        geometry, name = reader.geometry.of_layer(index), reader.names.output.format(index)
        inputs = geometry.num_heads * (geometry.value_dim or geometry.head_dim)
        inputs = inputs // 2 if geometry.is_differential else inputs
        product = reader.row_parallel(name, geometry.hidden_size, inputs, geometry.biases.output)
        return reader.after_norm(product, self._ops, reader.names.output_norm.format(index), inputs)

    def query_key_value(self, index: int) -> Linear:
        reader = self._reader
        geometry, names, group = reader.geometry.of_layer(index), reader.names, reader.group
        value = names.key if index in geometry.layers_with_one_kv_matrix else names.value
        each = names.query.format(index), names.key.format(index), value.format(index)
        queries, keys = reader.even_span(geometry.num_heads), reader.kv_heads(index)
        rows = query_key_value_rows(
            each, geometry, queries, keys, index, are_grouped=names.are_grouped, num_parts=names.num_parts
        )
        if geometry.attention_gate and not names.attention_gate:
            rows[0] = without_gates(rows[0], geometry.head_dim)
        product = reader.column_parallel(rows, geometry.hidden_size, geometry.biases.qkv)
        if geometry.clip_qkv is not None:
            product = ClippedLinear(product, self._ops, geometry.clip_qkv)
        if geometry.qk_norm and geometry.qk_norm.spans == "all_heads":
            totals = [count * geometry.head_dim for count in (geometry.num_heads, geometry.num_kv_heads)]
            named = zip((names.query_norm, names.key_norm), totals, strict=True)
            norms = [reader.whole_norm(name.format(index), total) for name, total in named]
            spans = [(first * geometry.head_dim, last * geometry.head_dim) for first, last in (queries, keys)]
            product = WholeNorms(product, self._ops, group, norms, spans)
        return product

    def options(self, index: int) -> AttentionOptions:
        reader = self._reader
        geometry, names = reader.geometry.of_layer(index), reader.names
        slopes, sinks, here = None, None, slice(*reader.even_span(geometry.num_heads))
        if geometry.slopes:
            slopes = torch.tensor(geometry.slopes[here], device=reader.device)
        window, both_ways = geometry.sliding_windows[index], geometry.is_bidirectional
        if names.sinks and (window or geometry.has_sinks_beyond_windows):
            sinks = reader.vector(names.sinks.format(index), geometry.num_heads)[here].float()
        chunk = geometry.attention_chunks[index] if geometry.attention_chunks else 0
        bias = self._relative_bias
        return AttentionOptions(geometry.scale, window, geometry.caps.scores, slopes, both_ways, chunk, sinks, bias)

    @cached_property
    def _relative_bias(self) -> Tensor | None:
        """What this rank's heads add at each distance, [heads, distances] float32; None: no relative positions."""
        reader = self._reader
        if (relative := reader.geometry.relative_positions) is None:
            return None
        name, heads = reader.names.relative_bias, slice(*reader.even_span(reader.geometry.num_heads))
        table = reader.tensor(name, lambda: reader.read_tensor(name, (relative.num_buckets, reader.geometry.num_heads)))
        buckets = distance_buckets(relative.num_buckets, relative.max_distance).to(table.device)
        return table.float()[buckets, heads].T.contiguous()

    def gated(self, index: int, attention: AnyAttention) -> Mixer:
        reader = self._reader
        geometry, by = reader.geometry.of_layer(index), reader.geometry.attention_gate
        assert by is not None
        width = geometry.latent.value_dim if geometry.latent else geometry.head_dim
        total = geometry.num_heads * width
        if own := reader.names.attention_gate.format(index):
            rows = Rows(own, total, reader.even_span(total))
            if reader.names.has_gates_of_heads:  # each row is read once for each element of its head
                heads = torch.arange(*reader.even_span(geometry.num_heads)).repeat_interleave(width)
                rows = Rows.chosen(own, geometry.num_heads, heads)
            gate = reader.column_parallel([rows], geometry.hidden_size, False)
            return GatedAttention(attention, gate, by, self._parts.recurrences)
        name, heads = reader.names.query.format(index), torch.arange(*reader.even_span(geometry.num_heads))
        rows = Rows.chosen(name, 2 * total, rows_of(2 * heads + 1, torch.arange(width)))
        gate = reader.column_parallel([rows], geometry.hidden_size, False, f"{name} (gate)")
        return GatedAttention(attention, gate, by, self._parts.recurrences)


def without_gates(queries: Rows, head_dim: int) -> Rows:
    """The rows of `queries` in a projection with a gate after each head's query."""
    start, stop = queries.span
    rows = torch.arange(start, stop) if queries.order is None else start + queries.order
    return Rows.chosen(queries.name, 2 * queries.total, rows + rows // head_dim * head_dim)
