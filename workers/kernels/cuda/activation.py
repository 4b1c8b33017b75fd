"""The gated feed-forward's nonlinearities."""

import ctypes
from typing import Literal

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

Activation = Literal["silu", "gelu_tanh", "gelu_erf"]  # functions of activation.cu
MAX_THREADS = 256


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
    threads = min(-(-size // 256) * 32, MAX_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("SIZE", size), ("ACTIVATION", activation)
    return Kernel("activation.cu", "gated_activation", defines, threads)


def production_kernels() -> list[Kernel]:
    """Llama's and Qwen's gate in both dtypes, Gemma's, and the exact GELU."""
    return [
        gated_activation_kernel(torch.bfloat16, 14336, "silu"),
        gated_activation_kernel(torch.float16, 14336, "silu"),
        gated_activation_kernel(torch.bfloat16, 14336, "gelu_tanh"),
        gated_activation_kernel(torch.bfloat16, 14336, "gelu_erf"),
    ]
