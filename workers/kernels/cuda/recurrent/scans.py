"""Recurrences with a state of float32 numbers for each output. A token's bits depend only on its request's tokens."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ....checkpoint.recurrent.columns import LANES, state_shape
from ....kv.state_rows import StateRows
from ....layers.recurrent.weights import GatedDelta, Mamba2
from ..kernel import SCALARS, Grid, Kernel, Launcher
from .state_rows import StateRowsParams, state_rows_params

MAX_WARPS, OUTPUTS_OF_WARP = 4, 8
DEPTH_MULTIPLE, MAX_DEPTH = 4, 512  # numbers of an output's state
WIDE_DEPTH = 256  # beyond it the inputs of fewer tokens are in shared memory


class Mamba2ScanParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRowsParams),
        *((name, ctypes.c_void_p) for name in ("y", "x", "dt", "a", "d", "dt_bias")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride", "dt_stride")),
        *((name, ctypes.c_int) for name in ("heads", "head_dim", "groups")),
        *((name, ctypes.c_float) for name in ("least_dt", "greatest_dt")),
    )


class GatedDeltaParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRowsParams),
        *((name, ctypes.c_void_p) for name in ("y", "x", "b", "alpha", "a", "dt_bias")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride", "gate_stride")),
        *((name, ctypes.c_int) for name in ("heads", "key_heads", "value_dim")),
        *((name, ctypes.c_float) for name in ("scale", "eps")),
    )


def mamba2_scan(
    launcher: Launcher, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor, out: Tensor
) -> Tensor:
    """Set `out` [tokens, heads * head_dim] as Recurrences.mamba2 has it. Rows of `x`, `dt` and `out` may be strided."""
    heads, head_dim, inner = weights.heads, weights.head_dim, weights.heads * weights.head_dim
    assert heads % weights.groups == 0, (heads, weights.groups)
    assert x.shape[1] == inner + 2 * weights.groups * weights.state_size, x.shape
    assert out.shape[1] == inner, out.shape
    assert dt.shape[1] == heads, dt.shape
    per_head = weights.a, weights.d, weights.dt_bias
    _check(states, weights.state_shape, (x, dt, out), per_head)
    if len(x):
        kernel = mamba2_kernel(x.dtype, head_dim, weights.state_size)
        pointers = (tensor.data_ptr() for tensor in (out, x, dt, *per_head))
        rest = out.stride(0), x.stride(0), dt.stride(0), heads, head_dim, weights.groups, *weights.dt_limits
        params = Mamba2ScanParams(state_rows_params(rows, states), *pointers, *rest)
        launcher.launch(kernel, _grid(kernel, rows, heads, head_dim), params)
    return out


def gated_delta(
    launcher: Launcher,
    rows: StateRows,
    states: Tensor,
    weights: GatedDelta,
    x: Tensor,
    gates: tuple[Tensor, Tensor],
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, heads * value_dim] as Recurrences.gated_delta has it.

    `gates` are b and alpha, [tokens, heads]. Rows of `x`, gates and `out` may be strided.
    """
    heads, key_heads, key_dim, value_dim = weights.heads, weights.key_heads, weights.key_dim, weights.value_dim
    assert heads % key_heads == 0, (heads, key_heads)
    assert x.shape[1] == 2 * key_heads * key_dim + heads * value_dim, x.shape
    assert out.shape[1] == heads * value_dim, out.shape
    assert gates[0].shape == gates[1].shape == (len(x), heads)
    assert gates[0].stride(0) == gates[1].stride(0)
    per_head = weights.a, weights.dt_bias
    _check(states, weights.state_shape, (x, *gates, out), per_head)
    if len(x):
        kernel = gated_delta_kernel(x.dtype, value_dim, key_dim)
        pointers = (tensor.data_ptr() for tensor in (out, x, *gates, *per_head))
        strides, sizes = (out.stride(0), x.stride(0), gates[0].stride(0)), (heads, key_heads, value_dim)
        rest = *strides, *sizes, key_dim**-0.5, weights.eps
        params = GatedDeltaParams(state_rows_params(rows, states), *pointers, *rest)
        launcher.launch(kernel, _grid(kernel, rows, heads, value_dim), params)
    return out


def mamba2_kernel(dtype: torch.dtype, head_dim: int, state_size: int) -> Kernel:
    return _kernel("mamba2_scan", dtype, head_dim, state_size)


def gated_delta_kernel(dtype: torch.dtype, value_dim: int, key_dim: int) -> Kernel:
    return _kernel("gated_delta", dtype, value_dim, key_dim)


def production_kernels() -> list[Kernel]:
    """Kernels of Mamba 2, Bamba and Granite 4, of Nemotron-H, of Qwen3-Next, and of the largest states."""
    bf16, fp16 = torch.bfloat16, torch.float16
    return [
        *(mamba2_kernel(dtype, 64, 128) for dtype in (bf16, fp16)),
        *(mamba2_kernel(bf16, 80, size) for size in (256, MAX_DEPTH)),
        *(gated_delta_kernel(dtype, 128, 128) for dtype in (bf16, fp16)),
        *(gated_delta_kernel(bf16, 128, size) for size in (256, MAX_DEPTH)),
    ]


def _kernel(function: str, dtype: torch.dtype, outputs: int, depth: int) -> Kernel:
    assert depth % DEPTH_MULTIPLE == 0, depth
    assert depth <= MAX_DEPTH, depth
    warps = min(MAX_WARPS, -(-outputs // LANES) * LANES // OUTPUTS_OF_WARP)
    tokens, padded = 8 if depth > WIDE_DEPTH else 16, -(-depth // 16) * 16
    shared_bytes = 4 * tokens * (2 * padded + warps * OUTPUTS_OF_WARP + 2)
    defines = ("SCALAR", SCALARS[dtype]), ("DEPTH", depth)
    return Kernel(f"recurrent/{function}.cu", function, defines, 32 * warps, shared_bytes)


def _grid(kernel: Kernel, rows: StateRows, heads: int, outputs: int) -> Grid:
    padded = -(-outputs // LANES) * LANES
    return heads * -(-padded // (kernel.threads // 32 * OUTPUTS_OF_WARP)), len(rows.kv_lens), 1


def _check(
    states: Tensor, shape: tuple[int, int, int, int], of_tokens: Sequence[Tensor], per_head: Sequence[Tensor]
) -> None:
    """`shape`: of a layer's state."""
    assert states.dtype == torch.float32, states.dtype
    assert states.shape[1:] == shape == state_shape(len(per_head[0]), shape[1] * shape[3], shape[2]), states.shape
    for tensor in of_tokens:
        assert tensor.dtype == of_tokens[0].dtype, tensor.dtype
        assert len(tensor) == len(of_tokens[0]), tensor.shape
        assert tensor.stride(1) == 1, tensor.stride()
    for tensor in per_head:
        assert tensor.dtype == torch.float32, tensor.dtype
        assert tensor.shape == shape[:1], tensor.shape
        assert tensor.is_contiguous()
