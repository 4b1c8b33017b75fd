"""The AttentionBackend of our CPU kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionOptions
from ...kernels.cpu.attention import HEAD_MULTIPLE, attention
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kv.cache_view import CacheView


class CpuPagedAttention:
    """Attention for heads of up to MAX_HEAD_DIM elements. A step needs no plan: the kernel divides the work itself."""

    head_multiple = HEAD_MULTIPLE
    coded_cache: torch.dtype | None = torch.int8

    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def plan(self, views: Sequence[CacheView], num_heads: int) -> Sequence[CacheView]:
        return views

    def attend(self, plan: CacheView, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        tokens, heads, head_dim = query.shape
        out = self._buffers.take("mixed", tokens, heads * head_dim, query.dtype).view(query.shape)
        return attention(self._pool, query, plan, layer, options, out)
