"""Views of one layer's cache for a single kernel; the fields that the kernel does not read are empty."""

import torch
from torch import Tensor

from paged_serve.workers.kv.cache_view import CacheView
from paged_serve.workers.kv.kv_cache import KVCache

Scales = tuple[Tensor, Tensor]
NO_INTEGERS, NO_LENGTHS = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)


def reading_view(
    keys: Tensor, values: Tensor, tables: Tensor, row_starts: Tensor, kv_lens: Tensor, scales: Scales | None = None
) -> CacheView:
    """For attention."""
    cache = KVCache([keys], [values], keys.shape[2], [scales] if scales else ())
    return CacheView(cache, tables, row_starts, kv_lens, NO_INTEGERS, NO_INTEGERS, longest=0, num_decode_rows=0)


def writing_view(
    positions: Tensor, slots: Tensor, keys: Tensor, values: Tensor, scales: Scales | None = None
) -> CacheView:
    """For rotate_and_cache."""
    cache = KVCache([keys], [values], keys.shape[2], [scales] if scales else ())
    return CacheView(cache, *[NO_LENGTHS] * 3, positions, slots, longest=0, num_decode_rows=0)
