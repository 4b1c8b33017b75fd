"""The AttentionBackend of our CPU kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kernels.cpu.attention import HEAD_MULTIPLE, attention
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kv.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Where each request's tokens and keys are; the kernel does the rest."""

    block_tables: Tensor  # [rows, max_blocks] i32
    row_starts: Tensor  # [rows + 1] i32
    kv_lens: Tensor  # [rows] i32


class CpuPagedAttention:
    """For heads of any size up to MAX_HEAD_DIM."""

    head_multiple = HEAD_MULTIPLE
    coded_cache: torch.dtype | None = torch.int8

    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def plan(self, batch: InputBatch, cache: KVCache, num_heads: int) -> AttentionMetadata:
        return AttentionMetadata(batch.block_tables, batch.row_starts, batch.kv_lens)

    def attend(
        self, plan: AttentionMetadata, cache: KVCache, layer: int, query: Tensor, scale: float, window: int
    ) -> Tensor:
        tokens, heads, head_dim = query.shape
        out = self._buffers.take("mixed", tokens, heads * head_dim, query.dtype).view(query.shape)
        where = plan.block_tables, plan.row_starts, plan.kv_lens
        keys, values, scales = cache.keys[layer], cache.values[layer], cache.scales_of(layer)
        return attention(self._pool, query, keys, values, *where, scale, window, out=out, scales=scales)
