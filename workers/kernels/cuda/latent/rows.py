"""The rows of latent attention: each token's vector in the cache, and the rotated part of each head's query."""

import ctypes

import torch
from torch import Tensor

from ....geometry.layer_options import Latent
from ....kv.cache_view import CacheView
from ..kernel import SCALARS, Kernel, Launcher

MAX_THREADS = 256


class CacheLatentsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cache", "latents", "weight", "angles", "positions", "slots")),
        ("stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class RotateHeadsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "query", "angles", "positions")),
        *((name, ctypes.c_int64) for name in ("out_stride", "out_head_stride", "query_stride", "query_head_stride")),
        ("heads", ctypes.c_int),
    )


def cache_latents(
    launcher: Launcher,
    latents: Tensor,
    norm: Tensor,
    eps: float,
    angles: Tensor,
    view: CacheView,
    layer: int,
    sizes: Latent,
) -> None:
    """Write `latents` [tokens, kv_rank + rope_dim], whose rows may be strided, to the tokens' slots of `layer`.

    The first kv_rank elements are RMS-normalised with the weights `norm` [kv_rank] float32, the others rotated by
    `angles` [positions, rope_dim] float32, a Rotary's table. Tokens with a negative slot are not written.
    """
    cache, tokens = view.cache.keys[layer], len(latents)
    assert latents.shape == (tokens, sizes.cached_dim), latents.shape
    assert cache.shape[1::2] == (1, sizes.cached_dim), cache.shape
    assert cache.dtype == latents.dtype, cache.dtype
    assert cache.is_contiguous()
    assert norm.dtype == torch.float32, norm.dtype
    assert norm.shape == (sizes.kv_rank,), norm.shape
    _check(latents.stride(1), latents.stride(0), latents.data_ptr(), cache.data_ptr())
    _check_positions(angles, view.positions, tokens, sizes)
    assert view.slots.shape == (tokens,), view.slots.shape
    tensors = cache, latents, norm, angles, view.positions, view.slots
    if tokens:
        params = CacheLatentsParams(*(tensor.data_ptr() for tensor in tensors), latents.stride(0), eps)
        launcher.launch(cache_latents_kernel(latents.dtype, sizes), (tokens, 1, 1), params)


def cache_latents_kernel(dtype: torch.dtype, sizes: Latent) -> Kernel:
    threads = min(-(-sizes.kv_rank // 256) * 32, MAX_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("KV_RANK", sizes.kv_rank), ("ROPE_DIM", sizes.rope_dim)
    return Kernel("latent/cache_latents.cu", "cache_latents", defines, threads, shared_bytes=threads // 32 * 4)


def rotate_heads(
    launcher: Launcher, query: Tensor, angles: Tensor, positions: Tensor, sizes: Latent, out: Tensor
) -> None:
    """Set the last rope_dim elements of each head of `out` to those of `query`, rotated.

    Both are [tokens, heads, elements] of one dtype. Tokens, and heads, may be strided.
    """
    tokens, heads = query.shape[:2]
    ends = [each[:, :, each.shape[2] - sizes.rope_dim :] for each in (out, query)]
    assert out.shape[:2] == query.shape[:2], out.shape
    assert out.dtype == query.dtype, out.dtype
    for end in ends:
        _check(end.stride(2), end.stride(0), end.stride(1), end.data_ptr())
    _check_positions(angles, positions, tokens, sizes)
    pointers = *(end.data_ptr() for end in ends), angles.data_ptr(), positions.data_ptr()
    strides = (stride for end in ends for stride in end.stride()[:2])
    kernel = rotate_heads_kernel(query.dtype, heads, sizes)
    if tokens:
        blocks = -(-heads * sizes.rope_dim // 16 // kernel.threads)
        launcher.launch(kernel, (tokens, blocks, 1), RotateHeadsParams(*pointers, *strides, heads))


def rotate_heads_kernel(dtype: torch.dtype, heads: int, sizes: Latent) -> Kernel:
    """The kernel, with a thread for each pack of a token's heads, up to MAX_THREADS."""
    threads = min(-(-heads * sizes.rope_dim // 16 // 32) * 32, MAX_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("ROPE_DIM", sizes.rope_dim)
    return Kernel("latent/rotate_heads.cu", "rotate_heads", defines, threads)


def production_kernels() -> list[Kernel]:
    """Kernels of DeepSeek-V2 and V3, and of V2-Lite."""
    sizes, kinds = Latent(1536, 512, 128, 64, 128), (torch.bfloat16, torch.float16)
    return [
        *(cache_latents_kernel(dtype, sizes) for dtype in kinds),
        *(rotate_heads_kernel(dtype, heads, sizes) for dtype in kinds for heads in (16, 128)),
    ]


def _check(last_stride: int, *multiples: int) -> None:
    """Assert that rows can be read in packs of 8 elements; `multiples` are strides and addresses."""
    assert last_stride == 1, last_stride
    assert all(each % 8 == 0 for each in multiples), multiples


def _check_positions(angles: Tensor, positions: Tensor, tokens: int, sizes: Latent) -> None:
    assert angles.dtype == torch.float32, angles.dtype
    assert angles.shape[1] == sizes.rope_dim, angles.shape
    assert angles.is_contiguous()
    assert positions.dtype == torch.int64, positions.dtype
    assert positions.shape == (tokens,), positions.shape
