"""Recurrences with a state of float32 numbers for each output. A token's bits depend only on its request's tokens."""

import ctypes

import torch
from torch import Tensor

from ....geometry.recurrent.columns import LANES
from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_gated_delta, check_mamba2
from ..kernel import SCALARS, Grid, Kernel, Launcher
from .state_rows import StateRowsParams, state_rows_params

MAX_WARPS, OUTPUTS_OF_WARP = 4, 8
DEPTH_MULTIPLE, MAX_DEPTH = 4, 512  # numbers of an output's state
WIDE_DEPTH = 256  # beyond it the inputs of fewer tokens are in shared memory
# Beyond it the compiler spills registers for more blocks of a multiprocessor, unless their number is given.
BOUNDED_DEPTH, MIN_BLOCKS = 128, 2


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
        *((name, ctypes.c_float) for name in ("scale", "eps", "max_beta")),
    )


def mamba2_scan(
    launcher: Launcher,
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
    check_mamba2(states, x, dt, per_head, sizes, out)
    if len(x):
        kernel = mamba2_kernel(x.dtype, head_dim, state_size)
        pointers = (tensor.data_ptr() for tensor in (out, x, dt, *per_head))
        rest = out.stride(0), x.stride(0), dt.stride(0), heads, head_dim, groups, *dt_limits
        params = Mamba2ScanParams(state_rows_params(rows, states), *pointers, *rest)
        launcher.launch(kernel, scan_grid(kernel, rows, heads, head_dim), params)
    return out


def gated_delta(
    launcher: Launcher,
    rows: StateRows,
    states: Tensor,
    x: Tensor,
    gates: tuple[Tensor, Tensor],
    per_head: tuple[Tensor, Tensor],
    sizes: tuple[int, int, int],
    eps: float,
    max_beta: float,
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, heads * value_dim] as Recurrences.gated_delta has it.

    `gates` are b and alpha, [tokens, heads], `per_head` a and dt_bias, [heads] float32; `sizes` are key_heads, key_dim
    and value_dim. Rows of `x`, gates and `out` may be strided.
    """
    heads, (key_heads, key_dim, value_dim) = gates[0].shape[1], sizes
    check_gated_delta(states, x, gates, per_head, sizes, out)
    assert gates[0].shape == gates[1].shape, gates[1].shape
    assert gates[0].stride(0) == gates[1].stride(0), gates[1].stride()
    if len(x):
        kernel = gated_delta_kernel(x.dtype, value_dim, key_dim)
        pointers = (tensor.data_ptr() for tensor in (out, x, *gates, *per_head))
        strides = out.stride(0), x.stride(0), gates[0].stride(0)
        rest = *strides, heads, key_heads, value_dim, key_dim**-0.5, eps, max_beta
        params = GatedDeltaParams(state_rows_params(rows, states), *pointers, *rest)
        launcher.launch(kernel, scan_grid(kernel, rows, heads, value_dim), params)
    return out


def mamba2_kernel(dtype: torch.dtype, head_dim: int, state_size: int) -> Kernel:
    return scan_kernel("mamba2_scan", dtype, head_dim, state_size)


def gated_delta_kernel(dtype: torch.dtype, value_dim: int, key_dim: int) -> Kernel:
    return scan_kernel("gated_delta", dtype, value_dim, key_dim)


def production_kernels() -> list[Kernel]:
    """Kernels of Mamba 2, Bamba and Granite 4, of Nemotron-H, of Qwen3-Next, and of the largest states."""
    bf16, fp16 = torch.bfloat16, torch.float16
    return [
        *(mamba2_kernel(dtype, 64, 128) for dtype in (bf16, fp16)),
        *(mamba2_kernel(bf16, 80, size) for size in (256, MAX_DEPTH)),
        *(gated_delta_kernel(dtype, 128, 128) for dtype in (bf16, fp16)),
        *(gated_delta_kernel(bf16, 128, size) for size in (256, MAX_DEPTH)),
    ]


def scan_kernel(
    function: str,
    dtype: torch.dtype,
    outputs: int,
    depth: int,
    of_output: int = 1,
    of_token: int = 2,
    min_blocks: int = 0,
) -> Kernel:
    """A kernel of scan.cuh for heads of `outputs`, each with `depth` numbers as its state.

    For each token it has in shared memory two vectors of `depth` floats, `of_output` for each output, and `of_token`.
    """
    assert depth % DEPTH_MULTIPLE == 0, depth
    assert depth <= MAX_DEPTH, depth
    warps = min(MAX_WARPS, -(-outputs // LANES) * LANES // OUTPUTS_OF_WARP)
    tokens, padded = 8 if depth > WIDE_DEPTH else 16, -(-depth // 16) * 16
    shared_bytes = 4 * tokens * (2 * padded + of_output * warps * OUTPUTS_OF_WARP + of_token)
    blocks = min_blocks or (MIN_BLOCKS if depth > BOUNDED_DEPTH else 0)
    bounds: list[tuple[str, int | str]] = [("MIN_BLOCKS", blocks)] if blocks else []
    defines: tuple[tuple[str, int | str], ...] = ("SCALAR", SCALARS[dtype]), ("DEPTH", depth), *bounds
    return Kernel(f"recurrent/{function}.cu", function, defines, 32 * warps, shared_bytes)


def scan_grid(kernel: Kernel, rows: StateRows, heads: int, outputs: int) -> Grid:
    """Thread blocks of all outputs of all rows."""
    padded = -(-outputs // LANES) * LANES
    return heads * -(-padded // (kernel.threads // 32 * OUTPUTS_OF_WARP)), len(rows.kv_lens), 1
