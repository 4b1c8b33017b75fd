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
from .feed_forward_reader import FeedForwardReader

NORM_EPS = 1e-6  # of the norms between projections, whatever rms_norm_eps is


class LatentReader(FeedForwardReader):
    """Reads the latent attention of a layer. Heads are divided among the ranks; what they share is on every rank."""

    def _latent_attention(
        self, sizes: Latent, options: AttentionOptions, index: int, ops: Ops, attention: AttentionBackend
    ) -> LatentAttention:
        geometry, names = self._geometry, self._names.latent
        first, last = self._even_span(geometry.num_heads)
        name = names.query_up if sizes.query_rank else self._names.query
        queries = self._query_rows(name.format(index), sizes)
        query_norm, query_up, before = None, None, queries
        if sizes.query_rank:
            query_norm = self._latent_norm(names.query_norm.format(index), sizes.query_rank)
            query_up = self._column_parallel([queries], sizes.query_rank, False)
            before = Rows(names.query_down.format(index), sizes.query_rank, (0, sizes.query_rank))
        shared = Rows.chosen(names.down.format(index), sizes.cached_dim, self._order(sizes.kv_rank, sizes.rope_dim))
        keys, values = self._weights(names.up.format(index), lambda: self._of_heads(sizes, index))
        norm = self._latent_norm(names.norm.format(index), sizes.kv_rank)
        layer = LatentLayer(index, sizes, last - first, norm, keys, values, options)
        return LatentAttention(
            down=self._column_parallel([before, shared], geometry.hidden_size, False),
            query_size=len(before),
            query_norm=query_norm,
            query_up=query_up,
            heads=self._backend.latent_heads(layer, attention),
            output=self._row_parallel(
                self._names.output.format(index), geometry.hidden_size, geometry.num_heads * sizes.value_dim, False
            ),
            ops=ops,
        )

    def _query_rows(self, name: str, sizes: Latent) -> Rows:
        """The rows of this rank's heads."""
        num_heads, width = self._geometry.num_heads, sizes.query_dim
        heads = torch.arange(*self._even_span(num_heads))
        rows = heads.unsqueeze(1) * width + self._order(sizes.nope_dim, sizes.rope_dim)
        return Rows.chosen(name, num_heads * width, rows.flatten())

    def _order(self, plain: int, rotated: int) -> Tensor:
        """The rows of `plain` elements and of `rotated` ones, whose pairs j and j + rotated / 2 kernels rotate."""
        pairs = torch.arange(rotated)
        if self._geometry.interleaved:
            pairs = pairs.view(-1, 2).T.flatten()
        return torch.cat([torch.arange(plain), plain + pairs])

    def _latent_norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self._vector(name, size), NORM_EPS)

    def _of_heads(self, sizes: Latent, index: int) -> list[Weight]:
        """What this rank's heads multiply with queries and with mixed latents, in the model's dtype."""
        name, width = self._names.latent.up.format(index), sizes.nope_dim + sizes.value_dim
        first, last = self._even_span(self._geometry.num_heads)
        part = MatrixPart((self._geometry.num_heads * width, sizes.kv_rank), 0, first * width, last * width)
        matrix = float_values(self._matrix(self._source.stored, name, part)).to(self._geometry.dtype)
        keys, values = torch.split(matrix.view(last - first, width, -1), [sizes.nope_dim, sizes.value_dim], dim=1)
        return [
            stacked_experts(name, [self._backend.accepted(each.contiguous(), matrix.dtype) for each in heads])
            for heads in (keys.transpose(1, 2), values)
        ]
