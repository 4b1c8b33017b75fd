"""Reads latent attention: its projections, and each head's part of the projection from the latent."""

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.stacked_experts import stacked_experts
from ...checkpoint.weight_forms import Weight, float_values
from ...geometry.layer_options import AttentionOptions, Latent
from ...layers.attention import AttentionBackend, LatentLayer
from ...layers.norm import RMSNorm
from ...layers.ops import Ops
from ...mixers.latent_attention import LatentAttention, SparseLatentAttention
from ..matrix_rows import Rows
from .indexer_reader import NORM_EPS, IndexerReader, pairs_in_order
from .layer_reader import LayerReader


class LatentReader:
    """Reads the latent attention of a layer. Heads are divided among the ranks; what they share is on every rank."""

    def __init__(self, reader: LayerReader, ops: Ops, backend: AttentionBackend):
        self._reader = reader
        self._ops = ops
        self._backend = backend
        self._indexer = IndexerReader(reader, ops, backend)

    def read(self, index: int, sizes: Latent, options: AttentionOptions) -> LatentAttention | SparseLatentAttention:
        reader = self._reader
        geometry, names = reader.geometry, reader.names.latent
        output, (first, last) = reader.names.output.format(index), reader.even_span(geometry.num_heads)
        name = names.query_up if sizes.query_rank else reader.names.query
        queries = self._query_rows(name.format(index), sizes)
        query_norm, query_up, before = None, None, queries
        if sizes.query_rank:
            query_norm = self._latent_norm(names.query_norm.format(index), sizes.query_rank)
            query_up = reader.column_parallel([queries], sizes.query_rank, False)
            before = Rows(names.query_down.format(index), sizes.query_rank, (0, sizes.query_rank))
        shared = Rows.chosen(names.down.format(index), sizes.cached_dim, self._order(sizes.kv_rank, sizes.rope_dim))
        keys, values = reader.weights(names.up.format(index), lambda: self._of_heads(sizes, index))
        norm = self._latent_norm(names.norm.format(index), sizes.kv_rank, sizes.norm_scale)
        down = reader.column_parallel([before, shared], geometry.hidden_size, False)
        mixed = reader.row_parallel(output, geometry.hidden_size, geometry.num_heads * sizes.value_dim, False)
        selector, indexer = self._indexer.read(index, sizes)
        layer = LatentLayer(index, sizes, last - first, norm, keys, values, options, selector)
        heads = reader.backend.latent_heads(layer, self._backend)
        if selector is None:
            return LatentAttention(down, len(before), query_norm, query_up, heads, mixed, self._ops)
        assert query_norm is not None
        assert query_up is not None
        return SparseLatentAttention(down, len(before), query_norm, query_up, heads, indexer, mixed, self._ops)

    def _query_rows(self, name: str, sizes: Latent) -> Rows:
        """The rows of this rank's heads."""
        num_heads, width = self._reader.geometry.num_heads, sizes.query_dim
        heads = torch.arange(*self._reader.even_span(num_heads))
        rows = heads.unsqueeze(1) * width + self._order(sizes.nope_dim, sizes.rope_dim)
        return Rows.chosen(name, num_heads * width, rows.flatten())

    def _order(self, plain: int, rotated: int) -> Tensor:
        """The rows of `plain` elements and of `rotated` ones, whose pairs j and j + rotated / 2 kernels rotate."""
        interleaved = self._reader.geometry.interleaved
        return torch.cat([torch.arange(plain), plain + pairs_in_order(rotated, interleaved)])

    def _latent_norm(self, name: str, size: int, scale: float = 1.0) -> RMSNorm:
        return RMSNorm(self._reader.vector(name, size).float() * scale, NORM_EPS)

    def _of_heads(self, sizes: Latent, index: int) -> list[Weight]:
        """What this rank's heads multiply with queries and with mixed latents, in the model's dtype."""
        reader = self._reader
        name, width = reader.names.latent.up.format(index), sizes.nope_dim + sizes.value_dim
        first, last = reader.even_span(reader.geometry.num_heads)
        part = MatrixPart((reader.geometry.num_heads * width, sizes.kv_rank), 0, first * width, last * width)
        matrix = float_values(reader.matrix(reader.source.stored, name, part)).to(reader.geometry.dtype)
        keys, values = torch.split(matrix.view(last - first, width, -1), [sizes.nope_dim, sizes.value_dim], dim=1)
        return [
            stacked_experts(name, [reader.backend.accepted(each.contiguous(), matrix.dtype) for each in heads])
            for heads in (keys.transpose(1, 2), values)
        ]
