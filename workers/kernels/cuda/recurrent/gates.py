"""What follows the recurrences: a norm with a gate, and a gate alone."""

import ctypes
from typing import Literal, get_args

import torch
from torch import Tensor

from ...shapes.recurrent import check_gate, check_gated_norm
from ..kernel import SCALARS, Kernel, Launcher

GateFunction = Literal["sigmoid", "silu", "softplus"]
GATE_FUNCTIONS: tuple[GateFunction, ...] = get_args(GateFunction)
MAX_NORM_THREADS, GATE_THREADS = 512, 256
ELEMENTS_OF_THREAD = 8  # of a norm, unless the group is longer


class GatedNormParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "x", "gate", "weight")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride", "gate_stride")),
        ("eps", ctypes.c_float),
    )


class SigmoidGateParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "x", "gate")),
        *((name, ctypes.c_int64) for name in ("y_stride", "x_stride", "gate_stride")),
        ("size", ctypes.c_int),
    )


def gated_norm(
    launcher: Launcher,
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    group_size: int,
    eps: float,
    out: Tensor,
    *,
    gates_last: bool,
) -> Tensor:
    """Set `out` [rows, size] as Recurrences.gated_norm has it; `weight` is [size] float32, rows may be strided."""
    rows, size = x.shape
    check_gated_norm(x, gate, weight, group_size, out)
    if rows:
        pointers = (tensor.data_ptr() for tensor in (out, x, gate, weight))
        params = GatedNormParams(*pointers, out.stride(0), x.stride(0), gate.stride(0), eps)
        kernel = gated_norm_kernel(x.dtype, group_size, gates_last)
        launcher.launch(kernel, (rows, size // group_size, 1), params)
    return out


def gated_norm_kernel(dtype: torch.dtype, group_size: int, gates_last: bool) -> Kernel:
    threads = min(-(-group_size // (32 * ELEMENTS_OF_THREAD)) * 32, MAX_NORM_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("GROUP", group_size), ("GATES_LAST", int(gates_last))
    return Kernel("recurrent/gated_norm.cu", "gated_norm", defines, threads, shared_bytes=threads // 32 * 4)


def sigmoid_gate(launcher: Launcher, x: Tensor, gate: Tensor, out: Tensor, by: GateFunction = "sigmoid") -> Tensor:
    """Set `out` [rows, size] as Recurrences.sigmoid_gated has it, silu_gated or softplus_gated; rows may be strided."""
    rows, size = x.shape
    check_gate(x, gate, out)
    if rows:
        pointers = (tensor.data_ptr() for tensor in (out, x, gate))
        params = SigmoidGateParams(*pointers, out.stride(0), x.stride(0), gate.stride(0), size)
        kernel = sigmoid_gate_kernel(x.dtype, by)
        launcher.launch(kernel, (rows, -(-size // kernel.threads), 1), params)
    return out


def sigmoid_gate_kernel(dtype: torch.dtype, by: GateFunction = "sigmoid") -> Kernel:
    defines = ("SCALAR", SCALARS[dtype]), ("FUNCTION", f"by_{by}")
    return Kernel("recurrent/sigmoid_gate.cu", "sigmoid_gate", defines, GATE_THREADS)


def production_kernels() -> list[Kernel]:
    """Kernels of Mamba 2 and Granite 4, of Nemotron-H, and of Qwen3-Next."""
    bf16, fp16 = torch.bfloat16, torch.float16
    return [
        *(gated_norm_kernel(dtype, size, False) for dtype in (bf16, fp16) for size in (1024, 5120)),
        *(gated_norm_kernel(dtype, 128, True) for dtype in (bf16, fp16)),
        *(sigmoid_gate_kernel(dtype, by) for dtype in (bf16, fp16) for by in GATE_FUNCTIONS),
    ]
