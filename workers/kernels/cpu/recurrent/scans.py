"""Recurrences with a state of float32 numbers for each output. A token's bits depend only on its request's tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ....checkpoint.recurrent.columns import state_shape
from ....kv.state_rows import StateRows
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import GatedDeltaParams, GatedNormParams, Mamba2ScanParams, SigmoidGateParams
from .state_rows import state_fields

MAMBA2, GATED_DELTA = packer(Mamba2ScanParams), packer(GatedDeltaParams)
GATED_NORM, SIGMOID_GATE = packer(GatedNormParams), packer(SigmoidGateParams)
STATE_MULTIPLE, KEY_MULTIPLE = 8, 4  # of state_size, and of key_dim


def mamba2_scan(
    pool: Pool,
    rows: StateRows,
    states: Tensor,
    x: Tensor,
    dt: Tensor,
    per_head: tuple[Tensor, Tensor, Tensor],
    sizes: tuple[int, int, int],
    dt_limits: tuple[float, float],
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, heads * head_dim] as Recurrences.mamba2 has it.

    `per_head` are a, d and dt_bias, each [heads] float32; `sizes` are head_dim, groups and state_size. Rows of `x`,
    `dt` and `out` may be strided.
    """
    heads, (head_dim, groups, state_size) = dt.shape[1], sizes
    inner, of_groups = heads * head_dim, groups * state_size
    assert state_size % STATE_MULTIPLE == 0, state_size
    assert heads % groups == 0, (heads, groups)
    assert x.shape[1] == inner + 2 * of_groups, x.shape
    assert out.shape[1] == inner, out.shape
    _check(rows, states, (heads, head_dim, state_size), (x, dt, out), per_head)
    b = x.data_ptr() + inner * x.itemsize
    tensors = out.data_ptr(), x.data_ptr(), b, b + of_groups * x.itemsize, dt.data_ptr()
    weights, strides = (each.data_ptr() for each in per_head), (out.stride(0), x.stride(0), dt.stride(0))
    rest = *strides, heads, *sizes, *dt_limits, DTYPE_CODES[x.dtype]
    pool.functions["mamba2_scan"](pool.handle, MAMBA2(*state_fields(rows, states), *tensors, *weights, *rest))
    return out


def gated_delta(
    pool: Pool,
    rows: StateRows,
    states: Tensor,
    x: Tensor,
    gates: tuple[Tensor, Tensor],
    per_head: tuple[Tensor, Tensor],
    sizes: tuple[int, int, int],
    eps: float,
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, heads * value_dim] as Recurrences.gated_delta has it.

    `gates` are b and alpha, [tokens, heads], `per_head` a and dt_bias, [heads] float32; `sizes` are key_heads, key_dim
    and value_dim. Rows of `x`, gates and `out` may be strided.
    """
    heads, (key_heads, key_dim, value_dim) = gates[0].shape[1], sizes
    of_keys = key_heads * key_dim
    assert key_dim % KEY_MULTIPLE == 0, key_dim
    assert heads % key_heads == 0, (heads, key_heads)
    assert x.shape[1] == 2 * of_keys + heads * value_dim, x.shape
    assert out.shape[1] == heads * value_dim, out.shape
    assert gates[0].shape == gates[1].shape
    assert gates[0].stride(0) == gates[1].stride(0)
    _check(rows, states, (heads, value_dim, key_dim), (x, *gates, out), per_head)
    key = x.data_ptr() + of_keys * x.itemsize
    tensors = out.data_ptr(), x.data_ptr(), key, key + of_keys * x.itemsize
    weights, strides = (each.data_ptr() for each in (*gates, *per_head)), (out.stride(0), x.stride(0))
    rest = *strides, gates[0].stride(0), heads, *sizes, key_dim**-0.5, eps, DTYPE_CODES[x.dtype]
    pool.functions["gated_delta"](pool.handle, GATED_DELTA(*state_fields(rows, states), *tensors, *weights, *rest))
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


def sigmoid_gate(pool: Pool, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, size] as Recurrences.sigmoid_gated has it; rows may be strided."""
    assert gate.shape == out.shape == x.shape
    assert x.dtype == gate.dtype == out.dtype
    assert x.stride(1) == gate.stride(1) == out.stride(1) == 1
    strides = out.stride(0), x.stride(0), gate.stride(0)
    fields = SIGMOID_GATE(out.data_ptr(), x.data_ptr(), gate.data_ptr(), *strides, *x.shape, DTYPE_CODES[x.dtype])
    pool.functions["sigmoid_gate"](pool.handle, fields)
    return out


def _check(
    rows: StateRows,
    states: Tensor,
    sizes: tuple[int, int, int],
    of_tokens: Sequence[Tensor],
    per_head: Sequence[Tensor],
) -> None:
    """`sizes`: heads, outputs of each, and state numbers of each output."""
    heads, outputs, depth = sizes
    assert states.dtype == torch.float32, states.dtype
    assert states.shape[1:] == state_shape(heads, outputs, depth), states.shape
    for tensor in of_tokens:
        assert tensor.dtype == of_tokens[0].dtype, tensor.dtype
        assert len(tensor) == len(of_tokens[0]), tensor.shape
        assert tensor.stride(1) == 1, tensor.stride()
    for tensor in per_head:
        assert tensor.dtype == torch.float32, tensor.dtype
        assert tensor.shape == (heads,), tensor.shape
        assert tensor.is_contiguous()
