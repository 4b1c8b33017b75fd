"""The operations between matrix products, each in one pass. A row's bits depend only on that row."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...geometry.model_options import Activation
from ...kv.cache_view import CacheView
from .attention import cached_head_dim
from .library import Pool
from .parameters import DTYPE_CODES, ActivateParams, CapParams, ClipParams, NormParams, RotateParams, packer, pointer

NORM, ACTIVATE, CLIP, CAP, ROTATE = map(packer, (NormParams, ActivateParams, ClipParams, CapParams, RotateParams))
KINDS = ("silu", "gelu_tanh", "gelu", "relu", "relu2", "clamped", "xielu")  # ActivateParams.kind


def normalise(
    pool: Pool,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    is_centred: bool,
    delta: Tensor | None = None,
    multiplier: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Add `multiplier` times `delta`, if given, to `hidden` [rows, size] in place; returns the normalised `hidden`.

    Normalised means: shifted to mean 0 if centred, scaled to a mean square of 1, times `weight`, plus `bias`.

    `weight` and `bias` [size] are float32, the rest of one dtype; `delta` is contiguous, rows of `hidden` and `out`
    may be strided.
    """
    rows, size = hidden.shape
    out = hidden.new_empty(rows, size) if out is None else out
    _check(hidden.dtype, (rows, size), delta)
    for strided in (hidden, out):
        assert strided.dtype == hidden.dtype, strided.dtype
        assert strided.shape == hidden.shape, strided.shape
        assert strided.stride(1) == 1, strided.stride()
    _check(torch.float32, (size,), weight, bias)
    pointers, strides = map(pointer, (out, hidden, delta, weight, bias)), (hidden.stride(0), out.stride(0))
    fields = NORM(*pointers, *strides, rows, size, eps, multiplier, is_centred, DTYPE_CODES[hidden.dtype])
    pool.functions["norm"](pool.handle, fields)
    return out


def activate(
    pool: Pool, x: Tensor, activation: Activation, out: Tensor | None = None, up: Tensor | None = None
) -> Tensor:
    """The activation of [rows, n], or if gated of [rows, 2 * n], as [rows, n]; like `activated` of workers/layers.

    With `up` [rows, n], whose rows may be strided, `x` has the gates alone.
    """
    rows, size = len(x), x.shape[1] if up is not None else activation.outputs(x.shape[1])
    out = x.new_empty((rows, size)) if out is None else out
    _check(x.dtype, x.shape, x)
    _check(x.dtype, (rows, size), out)
    if up is not None:
        assert activation.is_gated, activation
        assert (up.dtype, up.shape, up.stride(1)) == (x.dtype, x.shape, 1), (up.dtype, up.shape, up.stride())
    pool.functions["activate"](pool.handle, ACTIVATE(*activate_fields(x, activation, out, up)))
    return out


def activate_fields(x: Tensor, activation: Activation, out: Tensor, up: Tensor | None = None) -> tuple[float, ...]:
    """The fields of ActivateParams."""
    kind, constants = KINDS.index(activation.kind), activation.constants
    sizes = len(x), out.shape[1], kind, activation.is_gated, DTYPE_CODES[x.dtype]
    return out.data_ptr(), x.data_ptr(), pointer(up), 0 if up is None else up.stride(0), *sizes, *constants


def clip(pool: Pool, x: Tensor, limit: float) -> Tensor:
    """Limits `x` [rows, n], contiguous, to [-limit, limit] in place."""
    _check(x.dtype, x.shape, x)
    pool.functions["clip"](pool.handle, CLIP(x.data_ptr(), *x.shape, limit, DTYPE_CODES[x.dtype]))
    return x


def cap_logits(pool: Pool, logits: Tensor, cap: float) -> Tensor:
    """Replace `logits` [rows, columns] float32 by cap * tanh(logits / cap) in place. Rows may be strided."""
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.stride(1) == 1, logits.stride()
    fields = CAP(logits.data_ptr(), logits.stride(0), *logits.shape, cap)
    pool.functions["cap_logits"](pool.handle, fields)
    return logits


def rotate_and_cache(
    pool: Pool,
    projected: Tensor,
    angles: Tensor,
    view: CacheView,
    layer: int,
    query: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    *,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    is_centred: bool = False,
    query_scales: Tensor | None = None,
    has_keys: bool = True,
    normalises_values: bool = False,
) -> Tensor:
    """Write the rotated queries to `query` [tokens, heads, head_dim], and keys and values to the tokens' slots.

    `projected` [tokens, (heads + 2 kv_heads) * head_dim] holds queries, keys and values; without `has_keys` queries
    alone, and nothing is written to the cache. `normalises_values`: to a mean square of 1 for each head. `angles`
    [positions, head_dim] float32 are a Rotary's table; rotated queries are multiplied by `query_scales` [positions]
    float32. The weights of norms, and their `biases`, are [head_dim] float32, or [heads, head_dim] if they differ by
    head; a centred norm subtracts the mean. An int8 cache stores each head of a token as codes in -127..127 and a
    scale. Heads in the cache are zero-padded to cached_head_dim(head_dim) elements.
    """
    keys, values = view.cache.keys[layer], view.cache.values[layer]
    key_scales, value_scales = view.cache.scales_of(layer) or (None, None)
    tokens, heads, head_dim = query.shape
    block_size = keys.shape[2]
    kv_heads = keys.shape[1] if has_keys else 0
    _check(projected.dtype, (tokens, (heads + 2 * kv_heads) * head_dim), projected)
    _check(projected.dtype, query.shape, query)
    _check_cache(view, layer, tokens, head_dim, projected.dtype)
    _check(torch.float32, (len(angles), head_dim), angles)
    norms, is_per_head = (query_norm, key_norm), query_norm is not None and query_norm.dim() == 2
    for count, of_norm in ((heads, (query_norm, biases[0])), (kv_heads, (key_norm, biases[1]))):
        _check(torch.float32, (count, head_dim) if is_per_head else (head_dim,), *of_norm)
    if query_scales is not None:
        _check(torch.float32, (len(query_scales),), query_scales)
    places = angles, query_scales, view.positions, view.slots, keys, values, key_scales, value_scales
    pointers = map(pointer, (query, projected, *norms, *biases, *places))
    sizes = tokens, heads, kv_heads, head_dim, block_size, is_per_head * head_dim
    fields = ROTATE(*pointers, *sizes, eps, is_centred, normalises_values, DTYPE_CODES[projected.dtype])
    pool.functions["rotate_and_cache"](pool.handle, fields)
    return query


def _check_cache(view: CacheView, layer: int, tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    keys, scales = view.cache.keys[layer], view.cache.scales_of(layer)
    blocks, kv_heads, block_size = keys.shape[:3]
    shape = blocks, kv_heads, block_size, cached_head_dim(head_dim)
    _check(torch.int8 if scales else dtype, shape, keys, view.cache.values[layer])
    _check(torch.float32, shape[:3], *(scales or ()))
    _check(torch.int64, (tokens,), view.positions, view.slots)


def _check(dtype: torch.dtype, shape: Sequence[int], *tensors: Tensor | None) -> None:
    """Assert dtypes and shapes, because kernels do not check their pointers."""
    for tensor in tensors:
        if tensor is not None:
            assert tensor.dtype == dtype, (tensor.dtype, dtype)
            assert tensor.shape == torch.Size(shape), (tensor.shape, shape)
            assert tensor.is_contiguous()
