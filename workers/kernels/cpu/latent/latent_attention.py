"""Latent attention over the paged cache. A token's bits depend only on its query and its request's cached rows."""

import torch
from torch import Tensor

from ....checkpoint.packed_weight import PackedWeight, WeightFormat
from ....checkpoint.stacked_experts import padded_outputs
from ....geometry.layer_options import AttentionOptions, Latent
from ....kv.cache_view import CacheView
from ..attention import attention_fields, cached_head_dim
from ..gemm import ROW_DTYPES
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.latent import CacheLatentsParams, HeadGemmParams, LatentAttentionParams, RotateHeadsParams

CACHE, ROTATE, ATTEND = map(packer, (CacheLatentsParams, RotateHeadsParams, LatentAttentionParams))
GEMM = packer(HeadGemmParams)
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
FORMATS = (WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP32)


def cache_latents(
    pool: Pool, latents: Tensor, norm: Tensor, eps: float, angles: Tensor, view: CacheView, layer: int, sizes: Latent
) -> None:
    """Write `latents` [tokens, kv_rank + rope_dim], whose rows may be strided, to the tokens' slots of `layer`.

    The first kv_rank elements are RMS-normalised with the weights `norm` [kv_rank] float32, the others rotated by
    `angles` [positions, rope_dim] float32, a Rotary's table. An indexer's key in the same row is left as it is.
    """
    keys, positions, slots = view.cache.keys[layer], view.positions, view.slots
    tokens, dtype = len(latents), latents.dtype
    assert latents.shape == (tokens, sizes.cached_dim)
    assert latents.stride(1) == 1, latents.stride()
    assert keys.dtype == dtype, (keys.dtype, dtype)
    assert keys.shape[1::2] == (1, cached_head_dim(sizes.row_dim)), keys.shape
    assert keys.is_contiguous()
    assert norm.dtype == torch.float32, norm.dtype
    assert norm.shape == (sizes.kv_rank,), norm.shape
    assert positions.shape == slots.shape == (tokens,)
    assert positions.dtype == slots.dtype == torch.int64
    _check_angles(angles, sizes)
    pointers = (tensor.data_ptr() for tensor in (keys, latents, norm, angles, positions, slots))
    numbers = latents.stride(0), tokens, sizes.kv_rank, sizes.rope_dim, keys.shape[3], eps, DTYPE_CODES[dtype]
    pool.functions["cache_latents"](pool.handle, CACHE(*pointers, *numbers))


def rotate_heads(pool: Pool, query: Tensor, angles: Tensor, positions: Tensor, sizes: Latent, out: Tensor) -> None:
    """Set the last rope_dim elements of each head of `out` to those of `query`, rotated.

    Both are [tokens, heads, elements] of one dtype. Tokens, and heads, may be strided.
    """
    _check_angles(angles, sizes)
    last = slice(-sizes.rope_dim, None)
    rotate_parts(pool, query[:, :, last], angles, positions, out[:, :, last])


def rotate_parts(pool: Pool, x: Tensor, angles: Tensor, positions: Tensor, out: Tensor) -> None:
    """Set `out` to `x`, both [tokens, heads, rope_dim] of one dtype, rotated. They may be the same.

    Tokens, and heads, may be strided.
    """
    tokens, heads, size = x.shape
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert out.stride(2) == x.stride(2) == 1
    assert positions.shape == (tokens,)
    assert positions.dtype == torch.int64
    assert angles.dtype == torch.float32, angles.dtype
    assert angles.shape[1] == size, angles.shape
    assert angles.is_contiguous()
    strides = out.stride(0), x.stride(0), out.stride(1), x.stride(1)
    pointers = (each.data_ptr() for each in (out, x, angles, positions))
    fields = ROTATE(*pointers, *strides, tokens, heads, size, DTYPE_CODES[x.dtype])
    pool.functions["rotate_heads"](pool.handle, fields)


def head_gemm(pool: Pool, x: Tensor, weight: PackedWeight, out: Tensor) -> Tensor:
    """Set `out` [rows, heads, outputs] to the products of `x` [rows, heads, inputs] with the heads' own weights.

    `weight` is a packed stacked_experts() of the heads' matrices, in a float format. A row of a head has the bits of
    `gemm` with that head's weight. Rows, and heads, may be strided.
    """
    (rows, heads, inputs), outputs = x.shape, out.shape[2]
    assert weight.format in FORMATS, weight.format
    assert x.dtype == out.dtype == ROW_DTYPES[weight.format][0], (x.dtype, out.dtype, weight.format)
    assert weight.inputs == inputs, (weight.inputs, inputs)
    assert weight.outputs == heads * padded_outputs(outputs), (weight.outputs, heads, outputs)
    assert out.shape[:2] == (rows, heads)
    assert x.stride(2) == out.stride(2) == 1
    pointers = out.data_ptr(), x.data_ptr(), weight.data.data_ptr(), 0, 0
    product = *pointers, x.stride(0), out.stride(0), rows, outputs, inputs, DTYPE_CODES[out.dtype], 1
    fields = GEMM(*product, weight.data.nbytes // heads, x.stride(1), out.stride(1), heads)
    pool.functions[f"head_gemm_{weight.format}"](pool.handle, fields)
    return out


def latent_attention(
    pool: Pool, query: Tensor, view: CacheView, layer: int, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Attend with `query` [tokens, heads, kv_rank + rope_dim] to the layer's rows.

    Returns `out` [tokens, heads, kv_rank]. Values are the first kv_rank elements of the rows. Positions that no token
    attends to may hold anything.
    """
    fields = ATTEND(*attention_fields(query, view, layer, options, out), out.shape[2], query.shape[2])
    assert view.cache.keys[layer].shape[1] == 1
    assert out.shape[2] <= query.shape[2]
    pool.functions[f"latent_attention_{NAMES[query.dtype]}"](pool.handle, fields)
    return out


def _check_angles(angles: Tensor, sizes: Latent) -> None:
    assert angles.dtype == torch.float32, angles.dtype
    assert angles.shape[1] == sizes.rope_dim, angles.shape
    assert angles.is_contiguous()
