"""What lies between matrix products: root-mean-square normalisation, fused with the addition before it, and gates."""

import ctypes
from typing import Literal

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

Activation = Literal["silu", "gelu_tanh", "gelu_erf"]  # functions of activation.cu
MAX_NORM_THREADS, MAX_ACTIVATION_THREADS = 1024, 256


class RmsNormParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "hidden", "delta", "weight")),
        ("eps", ctypes.c_float),
    )


def rms_norm(
    launcher: Launcher,
    hidden: Tensor,
    weight: Tensor,
    eps: float,
    delta: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Adds `delta` to `hidden` in place, if there is one; `hidden` [rows, size] to unit mean square, times `weight`.

    `weight` [size] is float32, the rest bfloat16 or float16 and contiguous, `size` a multiple of 8.
    """
    rows, size = hidden.shape
    out = torch.empty_like(hidden) if out is None else out
    for tensor in (hidden, out, *([] if delta is None else [delta])):
        assert tensor.dtype == hidden.dtype, tensor.dtype
        assert tensor.shape == hidden.shape, tensor.shape
        assert tensor.is_contiguous()
    assert weight.dtype == torch.float32, weight.dtype
    assert weight.shape == (size,), weight.shape
    pointers = out.data_ptr(), hidden.data_ptr(), None if delta is None else delta.data_ptr(), weight.data_ptr()
    if rows:
        launcher.launch(rms_norm_kernel(hidden.dtype, size), (rows, 1, 1), RmsNormParams(*pointers, eps))
    return out


def rms_norm_kernel(dtype: torch.dtype, size: int) -> Kernel:
    """One pack of 8 a thread where a block is large enough."""
    threads = min(-(-size // 256) * 32, MAX_NORM_THREADS)
    defines = (("SCALAR", SCALARS[dtype]), ("SIZE", size))
    return Kernel("rms_norm.cu", "rms_norm", defines, threads, shared_bytes=threads // 32 * 4)


class ActivationParams(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("gate_up", ctypes.c_void_p))


def gated_activation(
    launcher: Launcher, gate_up: Tensor, activation: Activation = "silu", out: Tensor | None = None
) -> Tensor:
    """[rows, 2 * n], gate then up -> activation(gate) * up [rows, n]; bfloat16 or float16, n a multiple of 8."""
    rows, size = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, size)) if out is None else out
    assert out.dtype == gate_up.dtype, out.dtype
    assert gate_up.shape == (rows, 2 * size), gate_up.shape
    assert out.shape == (rows, size), out.shape
    for tensor in (gate_up, out):
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
    if rows:
        kernel = gated_activation_kernel(gate_up.dtype, size, activation)
        blocks_of_row = -(-size // (8 * kernel.threads))
        launcher.launch(kernel, (rows, blocks_of_row, 1), ActivationParams(out.data_ptr(), gate_up.data_ptr()))
    return out


def gated_activation_kernel(dtype: torch.dtype, size: int, activation: Activation) -> Kernel:
    """One pack of 8 a thread."""
    assert size % 8 == 0, size
    threads = min(-(-size // 256) * 32, MAX_ACTIVATION_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("SIZE", size), ("ACTIVATION", activation)
    return Kernel("activation.cu", "gated_activation", defines, threads)


def production_kernels() -> list[Kernel]:
    """Norms of common sizes; Llama's and Qwen's gate in both dtypes, Gemma's, and the exact GELU."""
    dtypes = torch.bfloat16, torch.float16
    return [
        *(rms_norm_kernel(dtype, size) for dtype in dtypes for size in (1024, 4096, 8192)),
        *(gated_activation_kernel(dtype, 14336, "silu") for dtype in dtypes),
        gated_activation_kernel(torch.bfloat16, 14336, "gelu_tanh"),
        gated_activation_kernel(torch.bfloat16, 14336, "gelu_erf"),
    ]
