"""Depthwise causal convolutions over a row's last positions."""

import ctypes

import torch
from torch import Tensor

from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_convolution
from ..kernel import SCALARS, Kernel, Launcher, pointer
from .state_rows import StateRowsParams, state_rows_params

WIDTHS = range(2, 9)  # that the kernel supports
THREADS = 128
FEW_TOKENS, SPAN = 256, 16  # a block has one token if there are few, otherwise SPAN; no bit depends on it


class CausalConvParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRowsParams),
        *((name, ctypes.c_void_p) for name in ("y", "x", "x_factors", "y_factors", "weight", "bias")),
        *((name, ctypes.c_int64) for name in ("x_stride", "y_stride")),
        *((name, ctypes.c_int) for name in ("channels", "tokens", "span")),
    )


def causal_conv(
    launcher: Launcher,
    rows: StateRows,
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    out: Tensor,
    x_factors: Tensor | None = None,
    y_factors: Tensor | None = None,
    *,
    activates: bool,
) -> Tensor:
    """Set `out` [tokens, channels] as Recurrences.causal_conv has it; rows of `out` may be strided."""
    (width, channels), tokens = weight.shape, len(x)
    check_convolution(states, weight, bias, x, out, (x_factors, y_factors))
    tensors = out, x, x_factors, y_factors, weight, bias
    pointers = map(pointer, tensors)
    if tokens:
        span = 1 if tokens <= FEW_TOKENS else SPAN
        strides, sizes = (x.stride(0), out.stride(0)), (channels, tokens, span)
        params = CausalConvParams(state_rows_params(rows, states), *pointers, *strides, *sizes)
        grid = -(-channels // THREADS), -(-tokens // span), 1
        launcher.launch(causal_conv_kernel(x.dtype, width, activates), grid, params)
    return out


def causal_conv_kernel(dtype: torch.dtype, width: int, activates: bool) -> Kernel:
    assert width in WIDTHS, width
    defines = ("SCALAR", SCALARS[dtype]), ("WIDTH", width), ("ACTIVATES", int(activates))
    return Kernel("recurrent/causal_conv.cu", "causal_conv", defines, THREADS)


def production_kernels() -> list[Kernel]:
    """Kernels of LFM2, of Mamba 2 and Qwen3-Next, and of the widest convolution."""
    kinds = (torch.bfloat16, torch.float16)
    sizes = (3, False), (4, True), (8, True)
    return [causal_conv_kernel(dtype, width, activates) for dtype in kinds for width, activates in sizes]
