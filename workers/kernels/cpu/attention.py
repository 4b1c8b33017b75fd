"""Attention over the paged cache by our CPU kernels. A token's bits depend only on its query and its request's keys."""

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionOptions
from ...kv.cache_view import CacheView
from .library import Pool
from .parameters import AttentionParams, packer, pointer

KERNELS = {  # (dtype of the query, dtype of the cache) -> kernel
    (torch.bfloat16, torch.bfloat16): "attention_bf16",
    (torch.float16, torch.float16): "attention_fp16",
    (torch.float32, torch.float32): "attention_fp32",
    (torch.bfloat16, torch.int8): "attention_int8",
    (torch.float16, torch.int8): "attention_int8_fp16",
}
HEAD_MULTIPLE = 16  # elements; heads in the cache are zero-padded to a multiple of this
MAX_HEAD_DIM = 1024
TILE_KEYS = 128  # the keys that are weighed together, from a multiple of it on
PARAMS = packer(AttentionParams)


def cached_head_dim(head_dim: int) -> int:
    """The number of elements that a head of this size has in the cache."""
    return -(-head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE


def attention(
    pool: Pool,
    query: Tensor,
    view: CacheView,
    layer: int,
    options: AttentionOptions,
    out: Tensor | None = None,
) -> Tensor:
    """Attend with `query` [tokens, heads, head_dim] to a layer's keys and values.

    Heads in the cache have cached_head_dim(head_dim) elements. Positions that no token attends to may hold anything.
    Returns [tokens, heads, head_dim] in the query's dtype: that of the cache, or a 16-bit dtype with an int8 cache.
    """
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype)
    assert query.shape == out.shape
    kernel = KERNELS[query.dtype, view.cache.keys[layer].dtype]
    pool.functions[kernel](pool.handle, PARAMS(*attention_fields(query, view, layer, options, out)))
    return out


def attention_fields(
    query: Tensor, view: CacheView, layer: int, options: AttentionOptions, out: Tensor
) -> tuple[float, ...]:
    """The fields of AttentionParams, checked."""
    keys, values, scales = view.cache.keys[layer], view.cache.values[layer], view.cache.scales_of(layer)
    block_tables, row_starts, kv_lens = view.block_tables, view.row_starts, view.kv_lens
    _, kv_heads, block_size, _ = keys.shape
    _check(query, view, layer, out)
    _check_pairs(options.pairs, query, view)
    cache = keys.data_ptr(), values.data_ptr(), *((s.data_ptr() for s in scales) if scales else (0, 0))
    return (
        *(out.data_ptr(), query.data_ptr(), *cache),
        *(block_tables.data_ptr(), row_starts.data_ptr(), kv_lens.data_ptr()),
        *attention_numbers(query, out, options, len(kv_lens), block_tables.stride(0), kv_heads, block_size),
    )


def attention_numbers(
    query: Tensor,
    out: Tensor,
    options: AttentionOptions,
    rows: int,
    table_stride: int,
    kv_heads: int,
    block_size: int,
) -> tuple[float, ...]:
    """The fields of AttentionParams after the addresses of the cache and of `rows` requests: options and sizes."""
    _check_options(options, query.shape[1])
    bias, pairs = options.bias, options.pairs
    return (
        *map(pointer, (options.slopes, bias, pairs, options.sinks)),
        *(out.stride(0), query.stride(0), 0 if pairs is None else pairs.shape[2]),
        *(rows, table_stride),
        *(kv_heads, query.shape[1] // kv_heads, query.shape[2], block_size),
        *(options.window, options.attention_chunk, options.is_bidirectional),
        0 if bias is None else bias.shape[1] // 2,
        *(options.scale, options.cap),
    )


def _check(query: Tensor, view: CacheView, layer: int, out: Tensor) -> None:
    keys, values, scales = view.cache.keys[layer], view.cache.values[layer], view.cache.scales_of(layer)
    block_tables, row_starts, kv_lens = view.block_tables, view.row_starts, view.kv_lens
    _, kv_heads, block_size, cached_dim = keys.shape
    head_dim = query.shape[2]
    assert cached_dim == cached_head_dim(head_dim), (cached_dim, head_dim)
    assert head_dim <= MAX_HEAD_DIM, head_dim
    assert block_size % 16 == 0, block_size
    assert query.dtype == out.dtype
    assert keys.dtype == values.dtype
    assert (keys.dtype == torch.int8) == (scales is not None)
    assert query.shape[:2] == out.shape[:2]
    assert query.shape[1] % kv_heads == 0
    assert values.shape == keys.shape
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride()[1:] == (head_dim, 1)
    assert out.stride()[1:] == (out.shape[2], 1)
    assert block_tables.dtype == row_starts.dtype == kv_lens.dtype == torch.int32
    assert block_tables.stride(1) == row_starts.stride(0) == kv_lens.stride(0) == 1
    assert len(block_tables) == len(row_starts) - 1 == len(kv_lens)
    for tensor in scales or ():
        assert tensor.dtype == torch.float32
        assert tensor.shape == keys.shape[:3]
        assert tensor.is_contiguous()


def _check_options(options: AttentionOptions, num_heads: int) -> None:
    for per_head in (options.slopes, options.sinks):
        if per_head is not None:
            assert per_head.dtype == torch.float32, per_head.dtype
            assert per_head.shape == (num_heads,), per_head.shape
            assert per_head.is_contiguous()
    if (bias := options.bias) is not None:
        assert bias.dtype == torch.float32, bias.dtype
        assert len(bias) == num_heads, bias.shape
        assert bias.shape[1] % 2, bias.shape
        assert bias.is_contiguous()


def _check_pairs(pairs: Tensor | None, query: Tensor, view: CacheView) -> None:
    if pairs is not None:
        assert pairs.dtype == torch.float32, pairs.dtype
        assert pairs.shape[:2] == query.shape[:2], (pairs.shape, query.shape)
        assert pairs.shape[2] % TILE_KEYS == 0, pairs.shape
        assert pairs.shape[2] >= view.longest, (pairs.shape, view.longest)
        assert pairs.is_contiguous()
