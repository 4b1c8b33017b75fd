"""The AttentionBackend of our CUDA kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kernels.cuda import attention as kernels
from ...kernels.cuda.attention_kernels import AttentionShape
from ...kernels.cuda.kernel import Launcher
from ...kv.kv_cache import KVCache
from .fixed_rows import empty_rows

MAX_SLOTS = 4096  # rows' sums over a split, of all requests of a step; a request that finds none free is not split


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """One step's work, by window, listed on the device when a layer first asks."""

    batch: InputBatch
    by_window: dict[int, kernels.AttentionWork]


class CudaPagedAttention:
    """For caches of bfloat16, float16 or e4m3 with heads of a size that the kernels know.

    Lists of work are kept for each number of requests and tokens, rounded up: a recorded graph finds its own again.
    """

    head_multiple = 1
    coded_cache: torch.dtype | None = torch.float8_e4m3fn

    def __init__(self, launcher: Launcher, arch: str, multiprocessors: int):
        self._launcher = launcher
        self._arch = arch
        self._multiprocessors = multiprocessors
        self._plans: dict[tuple[AttentionShape, int, int, int], kernels.AttentionWork] = {}

    def plan(self, batch: InputBatch, cache: KVCache, num_heads: int) -> AttentionMetadata:
        return AttentionMetadata(batch, {})

    def attend(
        self, plan: AttentionMetadata, cache: KVCache, layer: int, query: Tensor, scale: float, window: int
    ) -> Tensor:
        keys, values, batch = cache.keys[layer], cache.values[layer], plan.batch
        if window not in plan.by_window:
            plan.by_window[window] = self._listed(batch, query, keys, window)
        tokens, heads, head_dim = query.shape
        prefills = batch.num_decode_rows < len(batch.kv_lens)
        return kernels.attention(
            self._launcher,
            plan.by_window[window],
            query,
            keys,
            values,
            batch.block_tables,
            batch.row_starts,
            batch.kv_lens,
            scale,
            prefills=prefills,
            out=empty_rows(query.flatten(1), heads * head_dim).view(tokens, heads, head_dim),
        )

    def _listed(self, batch: InputBatch, query: Tensor, keys: Tensor, window: int) -> kernels.AttentionWork:
        _, num_heads, head_dim = query.shape
        _, kv_heads, block_size, _ = keys.shape
        heads = AttentionShape(query.dtype, keys.dtype, num_heads, kv_heads, head_dim, block_size)
        requests, tokens = _rounded_up(len(batch.kv_lens)), _rounded_up(len(query))
        key = heads, requests, tokens, window
        if key not in self._plans:
            parts = next((made for (known, *_), made in self._plans.items() if known == heads), None)
            blocks = max(1, 2 * self._multiprocessors // kv_heads)
            self._plans[key] = kernels.AttentionWork.allocate(
                heads, self._arch, blocks, requests, tokens, MAX_SLOTS, query.device, window, parts
            )
        listed = self._plans[key]
        kernels.plan(self._launcher, listed, batch.row_starts, batch.kv_lens)
        return listed


def _rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length()
