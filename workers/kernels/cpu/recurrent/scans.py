"""Recurrences with a state of float32 numbers for each output. A token's bits depend only on its request's tokens."""

import torch
from torch import Tensor

from ....kv.state_rows import StateRows
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import GatedDeltaParams, GatedNormParams, Mamba2ScanParams
from .state_rows import state_fields

MAMBA2, GATED_DELTA, GATED_NORM = map(packer, (Mamba2ScanParams, GatedDeltaParams, GatedNormParams))
STATE_MULTIPLE, KEY_MULTIPLE = 8, 4  # of state_size, and of key_dim


def mamba2_scan(
    pool: Pool,
    rows: StateRows,
    states: Tensor,
    x: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    per_head: tuple[Tensor, Tensor, Tensor],
    dt_limits: tuple[float, float],
    out: Tensor,
) -> Tensor:
    """Set `out` as Recurrences.mamba2 has it. `per_head` are a, d and dt_bias, each [heads] float32.

    `x` and `out` are [tokens, heads, head_dim], `b` and `c` [tokens, groups, state_size], `dt` [tokens, heads]; tokens
    may be strided, those of `x`, `b` and `c` alike.
    """
    _, heads, head_dim = x.shape
    groups, state_size = b.shape[1:]
    assert state_size % STATE_MULTIPLE == 0, state_size
    assert heads % groups == 0, (heads, groups)
    assert x.stride(0) == b.stride(0) == c.stride(0)
    assert b.shape == c.shape
    assert dt.shape == x.shape[:2]
    assert out.shape == x.shape
    assert x.dtype == b.dtype == c.dtype == dt.dtype == out.dtype
    _check_tokens(x, b, c, dt, out)
    _check_heads(heads, *per_head)
    _check_states(states, heads, head_dim, state_size)
    tensors = (tensor.data_ptr() for tensor in (out, x, b, c, dt, *per_head))
    strides = out.stride(0), x.stride(0), dt.stride(0)
    sizes = heads, head_dim, groups, state_size
    fields = MAMBA2(*state_fields(rows, states), *tensors, *strides, *sizes, *dt_limits, DTYPE_CODES[x.dtype])
    pool.functions["mamba2_scan"](pool.handle, fields)
    return out


def gated_delta(
    pool: Pool,
    rows: StateRows,
    states: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gates: tuple[Tensor, Tensor],
    per_head: tuple[Tensor, Tensor],
    eps: float,
    out: Tensor,
) -> Tensor:
    """Set `out` as Recurrences.gated_delta has it. `gates` are b and alpha, `per_head` a and dt_bias, [heads] float32.

    `query` and `key` are [tokens, key_heads, key_dim], `value` and `out` [tokens, heads, value_dim], gates
    [tokens, heads]; tokens may be strided, those of `query`, `key` and `value` alike.
    """
    _, heads, value_dim = value.shape
    key_heads, key_dim = key.shape[1:]
    assert key_dim % KEY_MULTIPLE == 0, key_dim
    assert heads % key_heads == 0, (heads, key_heads)
    assert query.stride(0) == key.stride(0) == value.stride(0)
    assert gates[0].stride(0) == gates[1].stride(0)
    assert query.shape == key.shape
    assert gates[0].shape == gates[1].shape == value.shape[:2]
    assert out.shape == value.shape
    assert {each.dtype for each in (query, key, *gates, out)} == {value.dtype}
    _check_tokens(query, key, value, *gates, out)
    _check_heads(heads, *per_head)
    _check_states(states, heads, value_dim, key_dim)
    tensors = (tensor.data_ptr() for tensor in (out, query, key, value, *gates, *per_head))
    strides = out.stride(0), value.stride(0), gates[0].stride(0)
    sizes = heads, key_heads, key_dim, value_dim
    of_norms = key_dim**-0.5, eps
    fields = GATED_DELTA(*state_fields(rows, states), *tensors, *strides, *sizes, *of_norms, DTYPE_CODES[value.dtype])
    pool.functions["gated_delta"](pool.handle, fields)
    return out


def gated_norm(
    pool: Pool, x: Tensor, gate: Tensor, weight: Tensor, group_size: int, eps: float, out: Tensor, *, gates_last: bool
) -> Tensor:
    """Set `out` [rows, size] as Recurrences.gated_norm has it; `weight` is [size] float32, rows may be strided."""
    rows, size = x.shape
    assert size % group_size == 0, (size, group_size)
    assert gate.shape == out.shape == x.shape
    assert x.dtype == gate.dtype == out.dtype
    assert weight.dtype == torch.float32, weight.dtype
    assert weight.shape == (size,)
    assert x.stride(1) == gate.stride(1) == out.stride(1) == 1
    pointers = out.data_ptr(), x.data_ptr(), gate.data_ptr(), weight.data_ptr()
    strides, sizes = (out.stride(0), x.stride(0), gate.stride(0)), (rows, size, group_size)
    fields = GATED_NORM(*pointers, *strides, *sizes, gates_last, eps, DTYPE_CODES[x.dtype])
    pool.functions["gated_norm"](pool.handle, fields)
    return out


def _check_tokens(*tensors: Tensor) -> None:
    """Each token's elements are contiguous."""
    for tensor in tensors:
        assert tensor[0].is_contiguous(), tensor.stride()


def _check_heads(heads: int, *per_head: Tensor) -> None:
    for tensor in per_head:
        assert tensor.dtype == torch.float32, tensor.dtype
        assert tensor.shape == (heads,), tensor.shape
        assert tensor.is_contiguous()


def _check_states(states: Tensor, heads: int, outputs: int, depth: int) -> None:
    lanes = states.shape[4]
    assert states.dtype == torch.float32, states.dtype
    assert states.shape[1:] == (heads, -(-outputs // lanes), depth, lanes), states.shape
