"""The kernels of Mamba 1. A token's bits depend only on its request's tokens."""

import ctypes

import torch
from torch import Tensor

from ....geometry.recurrent.mamba1 import STATE_MULTIPLE
from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_mamba1, check_norm_parts
from ..kernel import SCALARS, Kernel, Launcher
from .scans import MAX_DEPTH, MAX_WARPS, OUTPUTS_OF_WARP, scan_grid, scan_kernel
from .state_rows import StateRowsParams, state_rows_params

BLOCK_CHANNELS = MAX_WARPS * OUTPUTS_OF_WARP
NORM_THREADS = 128


class Mamba1ScanParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRowsParams),
        *((name, ctypes.c_void_p) for name in ("y", "x", "dt", "b_and_c", "a", "d", "dt_bias")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride", "dt_stride", "b_stride")),
        ("channels", ctypes.c_int),
    )


class NormPartsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "x", "weight")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride")),
        *((name, ctypes.c_int) for name in ("steps", "state_size")),
        ("eps", ctypes.c_float),
    )


def mamba1_scan(
    launcher: Launcher,
    rows: StateRows,
    states: Tensor,
    x: Tensor,
    dt: Tensor,
    b_and_c: Tensor,
    per_channel: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
) -> Tensor:
    """Set `out` [tokens, channels] as SelectiveScan.scan has it.

    `per_channel` are the exponents of decays, with the shape of a state, d and dt_bias, both [channels]; all float32.
    """
    (tokens, channels), state_size = x.shape, b_and_c.shape[1] // 2
    check_mamba1(states, x, dt, b_and_c, per_channel, out)
    if tokens:
        kernel = mamba1_kernel(x.dtype, state_size)
        pointers = (each.data_ptr() for each in (out, x, dt, b_and_c, *per_channel))
        strides = (each.stride(0) for each in (out, x, dt, b_and_c))
        params = Mamba1ScanParams(state_rows_params(rows, states), *pointers, *strides, channels)
        launcher.launch(kernel, scan_grid(kernel, rows, 1, channels), params)
    return out


def norm_parts(
    launcher: Launcher, x: Tensor, weight: Tensor, sizes: tuple[int, int], eps: float, out: Tensor
) -> Tensor:
    """Set `out` as SelectiveScan.normed_parts has it; `sizes` are steps and state_size, rows may be strided."""
    check_norm_parts(x, weight, sizes, out)
    if len(x):
        pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
        params = NormPartsParams(*pointers, out.stride(0), x.stride(0), *sizes, eps)
        launcher.launch(norm_parts_kernel(x.dtype), (len(x), 3, 1), params)
    return out


def mamba1_kernel(dtype: torch.dtype, state_size: int) -> Kernel:
    """The same for any number of channels, so that it does not depend on the number of ranks."""
    assert state_size % STATE_MULTIPLE == 0, state_size
    blocks = 4 if state_size <= 64 else 2  # without a number, the compiler spills registers for more of them
    return scan_kernel("mamba1_scan", dtype, BLOCK_CHANNELS, state_size, of_output=2, of_token=0, min_blocks=blocks)


def norm_parts_kernel(dtype: torch.dtype) -> Kernel:
    shared_bytes = NORM_THREADS // 32 * 4
    return Kernel("recurrent/norm_parts.cu", "norm_parts", (("SCALAR", SCALARS[dtype]),), NORM_THREADS, shared_bytes)


def production_kernels() -> list[Kernel]:
    """Kernels of Mamba, FalconMamba and Jamba, and of larger states."""
    bf16, fp16 = torch.bfloat16, torch.float16
    return [
        *(mamba1_kernel(dtype, 16) for dtype in (bf16, fp16)),
        *(mamba1_kernel(bf16, size) for size in (128, 136, 256, MAX_DEPTH)),
        *(norm_parts_kernel(dtype) for dtype in (bf16, fp16)),
    ]
