"""Views of one layer of a KV cache for a single kernel; fields that the kernel does not read are empty."""

import torch
from torch import Tensor

from paged_serve.workers.kv.cache_view import CacheView
from paged_serve.workers.kv.kv_cache import KVCache


def reading_view(keys: Tensor, values: Tensor, tables: Tensor, row_starts: Tensor, kv_lens: Tensor) -> CacheView:
    """For attention."""
    cache = KVCache([keys], [values], keys.shape[2])
    return CacheView(cache, tables, row_starts, kv_lens, *[torch.empty(0)] * 2, longest=0, num_decode_rows=0)


def writing_view(positions: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> CacheView:
    """For rotate_and_cache."""
    cache = KVCache([keys], [values], keys.shape[2])
    return CacheView(cache, *[torch.empty(0)] * 3, positions, slots, longest=0, num_decode_rows=0)
