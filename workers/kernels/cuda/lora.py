"""What LoRA adapters add to the rows of a step: y += scale * B (A x). A row's bits depend only on that row."""

import ctypes

import torch
from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas
from .kernel import SCALARS, Kernel, Launcher

SHRINK_RANKS = 4  # of a thread block, a warp each
THREADS = 128
FACTORS_BYTES = 16 * 256 * 4  # of a group's rows


class LoraParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "x", "sums", "groups", "table", "starts")),
        *((name, ctypes.c_int64) for name in ("x_stride", "y_stride")),
        *((name, ctypes.c_int) for name in ("rows", "parts", "inputs", "max_rank", "shares")),
    )


def lora_shrink(launcher: Launcher, deltas: Deltas, groups: AdapterGroups, x: Tensor, sums: Tensor) -> Tensor:
    """Set the grouped rows of `sums` [rows, width] float32 to A x, of `x` [rows, inputs], whose rows may be strided.

    Inputs and strides are multiples of 8.
    """
    inputs = deltas.shape.inputs
    assert x.shape == (len(sums), inputs), (x.shape, inputs)
    assert x.dtype == deltas.dtype, x.dtype
    assert x.stride(1) == 1, x.stride()
    assert inputs % 8 == x.stride(0) % 8 == x.data_ptr() % 16 == 0, (inputs, x.stride())
    if groups.most:
        params = _params(deltas, groups, sums.unsqueeze(0), x=x.data_ptr(), x_stride=x.stride(0))
        grid = groups.most, len(deltas.shape.outputs), deltas.max_rank // SHRINK_RANKS
        launcher.launch(shrink_kernel(deltas.dtype), grid, params)
    return sums


def lora_look_up(launcher: Launcher, deltas: Deltas, groups: AdapterGroups, ids: Tensor, sums: Tensor) -> Tensor:
    """The same, of a table's rows `ids` [rows] i64; an id outside the table gives zeros."""
    assert ids.dtype == torch.int64, ids.dtype
    assert ids.shape == (len(sums),), ids.shape
    assert ids.is_contiguous()
    assert deltas.shape.is_table
    if groups.most:
        params = _params(deltas, groups, sums.unsqueeze(0), x=ids.data_ptr())
        launcher.launch(look_up_kernel(deltas.dtype), (groups.most, 1, 1), params)
    return sums


def lora_expand(launcher: Launcher, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
    """Add scale * B h to the grouped rows of `y` [rows, outputs], in place; h is the sum of `shares`, in order.

    `shares` [count, rows, width] float32; rows of `y` may be strided.
    """
    outputs = deltas.shape.outputs
    assert y.shape == (shares.shape[1], sum(outputs)), (y.shape, outputs)
    assert y.stride(1) == 1, y.stride()
    if groups.most:
        params = _params(deltas, groups, shares, y=y.data_ptr(), y_stride=y.stride(0))
        chunks = sum(-(-each // THREADS) for each in outputs)
        launcher.launch(expand_kernel(deltas.dtype, y.dtype), (groups.most, chunks, 1), params)


def shrink_kernel(dtype: torch.dtype) -> Kernel:
    return Kernel("lora/shrink.cu", "lora_shrink", (("SCALAR", SCALARS[dtype]),), 32 * SHRINK_RANKS)


def look_up_kernel(dtype: torch.dtype) -> Kernel:
    return Kernel("lora/look_up.cu", "lora_look_up", (("SCALAR", SCALARS[dtype]),), THREADS)


def expand_kernel(dtype: torch.dtype, y_dtype: torch.dtype) -> Kernel:
    defines = ("SCALAR", SCALARS[dtype]), ("Y_SCALAR", SCALARS[y_dtype])
    return Kernel("lora/expand.cu", "lora_expand", defines, THREADS, FACTORS_BYTES)


def lora_kernels(dtype: torch.dtype) -> list[Kernel]:
    """The kernels of a model of this dtype."""
    return [shrink_kernel(dtype), look_up_kernel(dtype), expand_kernel(dtype, dtype)]


def production_kernels() -> list[Kernel]:
    return [kernel for dtype in (torch.bfloat16, torch.float16) for kernel in lora_kernels(dtype)]


def _params(
    deltas: Deltas,
    groups: AdapterGroups,
    shares: Tensor,
    *,
    x: int = 0,
    x_stride: int = 0,
    y: int = 0,
    y_stride: int = 0,
) -> LoraParams:
    count, rows, width = shares.shape
    assert width == deltas.width, (width, deltas.width)
    assert shares.dtype == torch.float32, shares.dtype
    assert shares.is_contiguous()
    assert groups.table.dtype == torch.int32, groups.table.dtype
    assert groups.table.shape == (1 + 4 * rows,), groups.table.shape
    pointers = y, x, *(each.data_ptr() for each in (shares, groups.table, deltas.table, deltas.starts))
    sizes = rows, len(deltas.shape.outputs), deltas.shape.inputs, deltas.max_rank, count
    return LoraParams(*pointers, x_stride, y_stride, *sizes)
