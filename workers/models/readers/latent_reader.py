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
from ...mixers.latent_attention import LatentAttention
from ..matrix_rows import Rows
from .layer_reader import LayerReader

NORM_EPS = 1e-6  # of the norms between projections, whatever rms_norm_eps is


class LatentReader:
    """Reads the latent attention of a layer. Heads are divided among the ranks; what they share is on every rank."""

    def __init__(self, reader: LayerReader, ops: Ops, backend: AttentionBackend):
        self._reader = reader
        self._ops = ops
        self._backend = backend

    def read(self, index: int, sizes: Latent, options: AttentionOptions) -> LatentAttention:
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
        norm = self._latent_norm(names.norm.format(index), sizes.kv_rank)
        layer = LatentLayer(index, sizes, last - first, norm, keys, values, options)
        return LatentAttention(
            down=reader.column_parallel([before, shared], geometry.hidden_size, False),
            query_size=len(before),
            query_norm=query_norm,
            query_up=query_up,
            heads=reader.backend.latent_heads(layer, self._backend),
            output=reader.row_parallel(output, geometry.hidden_size, geometry.num_heads * sizes.value_dim, False),
            ops=self._ops,
        )

    def _query_rows(self, name: str, sizes: Latent) -> Rows:
        """The rows of this rank's heads."""
        num_heads, width = self._reader.geometry.num_heads, sizes.query_dim
        heads = torch.arange(*self._reader.even_span(num_heads))
        rows = heads.unsqueeze(1) * width + self._order(sizes.nope_dim, sizes.rope_dim)
        return Rows.chosen(name, num_heads * width, rows.flatten())

    def _order(self, plain: int, rotated: int) -> Tensor:
        """The rows of `plain` elements and of `rotated` ones, whose pairs j and j + rotated / 2 kernels rotate."""
        pairs = torch.arange(rotated)
        if self._reader.geometry.interleaved:
            pairs = pairs.view(-1, 2).T.flatten()
        return torch.cat([torch.arange(plain), plain + pairs])

    def _latent_norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self._reader.vector(name, size), NORM_EPS)

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
