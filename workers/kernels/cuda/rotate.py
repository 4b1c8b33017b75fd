"""Splits projected tokens into rotated queries and cached keys and values."""

import ctypes
import functools

import torch
from torch import Tensor

from ...kv.cache_view import CacheView
from .kernel import SCALARS, Kernel, Launcher, pointer

CACHED = {**SCALARS, torch.float8_e4m3fn: "fp8"}
MAX_THREADS = 512  # beyond this, each thread processes several heads
MAX_CENTRED_THREADS = 256  # with 512, sm_80 and sm_89 spill registers


class RopeKvWriteParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "projected", "query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("query_bias", "key_bias", "angles", "query_scales")),
        *((name, ctypes.c_void_p) for name in ("positions", "slots", "keys", "values")),
        ("norm_packs", ctypes.c_int),
        *((name, ctypes.c_float) for name in ("eps", "key_factor", "value_factor")),
    )


def rotate_and_cache(
    launcher: Launcher,
    projected: Tensor,
    angles: Tensor,
    view: CacheView,
    layer: int,
    query: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    code_scales: tuple[float, float] = (1.0, 1.0),
    *,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    is_centred: bool = False,
    query_scales: Tensor | None = None,
    has_keys: bool = True,
    normalises_values: bool = False,
) -> Tensor:
    """Write the rotated queries to `query` [tokens, heads, head_dim], and keys and values to the tokens' slots.

    `projected` [tokens, (heads + 2 kv_heads) * head_dim] holds queries, keys and values; without `has_keys` queries
    alone, and nothing is written to the cache. Results of a token with a negative slot are not written. `angles`
    [positions, head_dim] float32 are a Rotary's table; rotated queries are multiplied by `query_scales` [positions]
    float32. The weights of norms, and their `biases`, are [head_dim] float32, or [heads, head_dim] if they differ by
    head; a centred norm subtracts the mean. `normalises_values`: to a mean square of 1 for each head. The cache has the
    dtype of `projected`, or float8_e4m3fn: a key is then its code times the first of `code_scales`, a value its code
    times the second.
    """
    keys, values, positions, slots = view.cache.keys[layer], view.cache.values[layer], view.positions, view.slots
    tokens, heads, head_dim = query.shape
    block_size = keys.shape[2]
    kv_heads = keys.shape[1] if has_keys else 0
    assert code_scales == (1.0, 1.0) or keys.dtype == torch.float8_e4m3fn, code_scales
    assert keys.dtype in (projected.dtype, torch.float8_e4m3fn), keys.dtype
    _check(projected, projected.dtype, tokens, (heads + 2 * kv_heads) * head_dim)
    _check(query, projected.dtype, tokens, heads, head_dim)
    _check_cache(view, layer, tokens, head_dim)
    _check(angles, torch.float32, len(angles), head_dim)
    is_per_head = query_norm is not None and query_norm.dim() == 2
    for count, of_norm in ((heads, (query_norm, biases[0])), (kv_heads, (key_norm, biases[1]))):
        for norm in of_norm:
            if norm is not None:
                _check(norm, torch.float32, *((count, head_dim) if is_per_head else (head_dim,)))
    tensors = query, projected, query_norm, key_norm, *biases, angles, query_scales, positions, slots, keys, values
    pointers = map(pointer, tensors)
    sizes = head_dim, heads, kv_heads, block_size
    kernel = rotate_and_cache_kernel(projected.dtype, keys.dtype, *sizes, is_centred, normalises_values and has_keys)
    if tokens:
        factors = (1.0 / scale for scale in code_scales)
        params = RopeKvWriteParams(*pointers, is_per_head * head_dim // 8, eps, *factors)
        launcher.launch(kernel, (tokens, 1, 1), params)
    return query


def _check_cache(view: CacheView, layer: int, tokens: int, head_dim: int) -> None:
    keys, values = view.cache.keys[layer], view.cache.values[layer]
    for cache in (keys, values):
        _check(cache, keys.dtype, *keys.shape[:3], head_dim)
    for indices in (view.positions, view.slots):
        _check(indices, torch.int64, tokens)


@functools.cache
def rotate_and_cache_kernel(
    dtype: torch.dtype,
    cached: torch.dtype,
    head_dim: int,
    heads: int,
    kv_heads: int,
    block_size: int,
    is_centred: bool = False,
    normalises_values: bool = False,
) -> Kernel:
    """The kernel, with as many threads per block as a token's heads need, up to a maximum."""
    assert head_dim % 16 == 0, head_dim
    assert head_dim <= 512, head_dim
    lanes = 1 << (head_dim // 16 - 1).bit_length()  # of one head
    most = MAX_CENTRED_THREADS if is_centred else MAX_THREADS
    threads = min(-(-(heads + 2 * kv_heads) * lanes // 32) * 32, most)
    sizes = ("HEAD_DIM", head_dim), ("HEADS", heads), ("KV_HEADS", kv_heads), ("BLOCK_SIZE", block_size)
    norms = ("IS_CENTRED", int(is_centred)), ("NORMALISES_VALUES", int(normalises_values))
    defines = ("SCALAR", SCALARS[dtype]), ("CACHED", CACHED[cached]), *sizes, *norms
    return Kernel("rope_kv_write.cu", "rope_kv_write", defines, threads)


def production_kernels() -> list[Kernel]:
    """Kernels for common models: head dimensions and dtypes of Llama, Phi, Gemma and others; the norms of some."""
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    shapes = (
        (bf16, bf16, 128, 32, 8, 16),
        (bf16, fp8, 128, 32, 8, 16),
        (fp16, fp16, 128, 32, 8, 16),
        (fp16, fp8, 128, 32, 8, 32),
        (bf16, bf16, 128, 64, 8, 64),
        (bf16, bf16, 64, 32, 8, 16),
        (bf16, bf16, 80, 32, 32, 16),
        (bf16, bf16, 96, 32, 32, 16),
        (bf16, bf16, 256, 16, 8, 16),
    )
    centred = bf16, bf16, 128, 96, 8, 16
    gemma4, queries = (bf16, bf16, 512, 32, 4, 16), (bf16, bf16, 512, 8, 0, 16)
    return [
        *(rotate_and_cache_kernel(*shape) for shape in (*shapes, queries)),
        rotate_and_cache_kernel(*centred, is_centred=True),
        rotate_and_cache_kernel(*gemma4, normalises_values=True),
    ]


def _check(tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Assert what kernels do not check: dtype, shape, and an alignment of 16 bytes."""
    assert tensor.dtype == dtype, (tensor.dtype, dtype)
    assert tensor.shape == shape, (tensor.shape, shape)
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 16 == 0 or dtype == torch.int64
