"""Recurrences with a state of float32 numbers for each output. A token's bits depend only on its request's tokens."""

from torch import Tensor

from ....geometry.recurrent.gated_delta import KEY_MULTIPLE
from ....geometry.recurrent.mamba2 import STATE_MULTIPLE
from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_gate, check_gated_delta, check_gated_norm, check_mamba2, state_fields
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import GatedDeltaParams, GatedNormParams, Mamba2ScanParams, SigmoidGateParams

MAMBA2, GATED_DELTA = packer(Mamba2ScanParams), packer(GatedDeltaParams)
GATED_NORM, SIGMOID_GATE = packer(GatedNormParams), packer(SigmoidGateParams)


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
    check_mamba2(states, x, dt, per_head, sizes, out)
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
    max_beta: float,
    lower_bound: float,
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, heads * value_dim] as Recurrences.gated_delta has it.

    `gates` are b, [tokens, heads], and alpha, [tokens, heads * decays], `per_head` a, [heads], and dt_bias, [heads *
    decays], both float32; `sizes` are key_heads, key_dim and value_dim. Rows of `x`, gates and `out` may be strided.
    """
    heads, (key_heads, *of_heads) = gates[0].shape[1], sizes
    key_dim = of_heads[0]
    of_keys = key_heads * key_dim
    assert key_dim % KEY_MULTIPLE == 0, key_dim
    check_gated_delta(states, x, gates, per_head, sizes, out)
    key = x.data_ptr() + of_keys * x.itemsize
    tensors = out.data_ptr(), x.data_ptr(), key, key + of_keys * x.itemsize
    weights = (each.data_ptr() for each in (*gates, *per_head))
    strides: tuple[int, ...] = (out.stride(0), x.stride(0))
    strides += tuple(each.stride(0) for each in gates)
    counts = heads, key_heads, gates[1].shape[1] // heads, *of_heads
    rest = *strides, *counts, key_dim**-0.5, eps, max_beta, lower_bound, DTYPE_CODES[x.dtype]
    pool.functions["gated_delta"](pool.handle, GATED_DELTA(*state_fields(rows, states), *tensors, *weights, *rest))
    return out


def gated_norm(
    pool: Pool,
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    group_size: int,
    eps: float,
    out: Tensor,
    *,
    gates_last: bool,
    sigmoid_gates: bool = False,
) -> Tensor:
    """Set `out` [rows, size] as Recurrences.gated_norm has it; `weight` is [size] float32, rows may be strided."""
    rows, size = x.shape
    check_gated_norm(x, gate, weight, group_size, out)
    pointers = out.data_ptr(), x.data_ptr(), gate.data_ptr(), weight.data_ptr()
    strides, sizes = (out.stride(0), x.stride(0), gate.stride(0)), (rows, size, group_size)
    fields = GATED_NORM(*pointers, *strides, *sizes, gates_last, sigmoid_gates, eps, DTYPE_CODES[x.dtype])
    pool.functions["gated_norm"](pool.handle, fields)
    return out


def sigmoid_gate(pool: Pool, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, size] as Recurrences.sigmoid_gated has it; rows may be strided."""
    check_gate(x, gate, out)
    strides = out.stride(0), x.stride(0), gate.stride(0)
    fields = SIGMOID_GATE(out.data_ptr(), x.data_ptr(), gate.data_ptr(), *strides, *x.shape, DTYPE_CODES[x.dtype])
    pool.functions["sigmoid_gate"](pool.handle, fields)
    return out
