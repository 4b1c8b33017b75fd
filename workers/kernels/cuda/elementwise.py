"""The operations between matrix products: norms, fused with the preceding addition, and activations."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from .kernel import LOG2_E, SCALARS, Kernel, Launcher, pointer

Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "xielu"]  # functions of activation.cu
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
    """Add `delta`, if given, to `hidden` [rows, size] in place; returns it scaled to unit mean square, times `weight`.

    `weight` [size] is float32; the rest is bfloat16 or float16 and contiguous; `size` is a multiple of 8.
    """
    rows, size = hidden.shape
    out = torch.empty_like(hidden) if out is None else out
    _check_norm(hidden, (hidden, out, delta), (weight,))
    pointers = out.data_ptr(), hidden.data_ptr(), pointer(delta), weight.data_ptr()
    if rows:
        launcher.launch(rms_norm_kernel(hidden.dtype, size), (rows, 1, 1), RmsNormParams(*pointers, eps))
    return out


@cache
def rms_norm_kernel(dtype: torch.dtype, size: int) -> Kernel:
    """The kernel; each thread has one pack of 8 elements if a block is large enough."""
    threads = _norm_threads(size)
    return Kernel("rms_norm.cu", "rms_norm", _norm_defines(dtype, size), threads, shared_bytes=threads // 32 * 4)


class LayerNormParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "hidden", "delta", "weight", "bias")),
        ("eps", ctypes.c_float),
    )


def layer_norm(
    launcher: Launcher,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    delta: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Like rms_norm, but with mean 0 and variance 1, times `weight`, plus `bias` [size] float32, if given."""
    rows, size = hidden.shape
    out = torch.empty_like(hidden) if out is None else out
    _check_norm(hidden, (hidden, out, delta), (weight, bias))
    tensors = out, hidden, delta, weight, bias
    pointers = map(pointer, tensors)
    if rows:
        launcher.launch(layer_norm_kernel(hidden.dtype, size), (rows, 1, 1), LayerNormParams(*pointers, eps))
    return out


@cache
def layer_norm_kernel(dtype: torch.dtype, size: int) -> Kernel:
    """The kernel; each thread has one pack of 8 elements if a block is large enough."""
    threads = _norm_threads(size)
    return Kernel(
        "layer_norm.cu", "layer_norm", _norm_defines(dtype, size), threads, shared_bytes=2 * threads // 32 * 4
    )


def _norm_threads(size: int) -> int:
    return min(-(-size // 256) * 32, MAX_NORM_THREADS)


def _norm_defines(dtype: torch.dtype, size: int) -> tuple[tuple[str, str | int], ...]:
    return ("SCALAR", SCALARS[dtype]), ("SIZE", size)


def _check_norm(hidden: Tensor, rows: Sequence[Tensor | None], vectors: Sequence[Tensor | None]) -> None:
    """Assert dtypes and shapes, because kernels do not check their pointers."""
    for tensor in rows:
        if tensor is not None:
            assert tensor.dtype == hidden.dtype, tensor.dtype
            assert tensor.shape == hidden.shape, tensor.shape
            assert tensor.is_contiguous()
    for vector in vectors:
        if vector is not None:
            assert vector.dtype == torch.float32, vector.dtype
            assert vector.shape == hidden.shape[1:], vector.shape


class ActivationParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "up", "count")),
        *((name, ctypes.c_int) for name in ("x_packs", "up_packs")),
        *((name, ctypes.c_float) for name in ("alpha_p", "alpha_n")),
    )


def activate(
    launcher: Launcher,
    x: Tensor,
    activation: Activation = "silu",
    is_gated: bool = True,
    out: Tensor | None = None,
    count: int | None = None,
    alphas: tuple[float, float] = (0.0, 0.0),
    up: Tensor | None = None,
) -> Tensor:
    """The activation of [rows, n]; if gated, activation(gate) * up of [rows, 2 * n], gate then up. Returns [rows, n].

    With `up` [rows, n], `x` has the gates alone; rows of both may be strided. `x` is bfloat16 or float16; n is a
    multiple of 8. `count` is the address of the number of rows in use; None: all. `alphas`: alpha_p and alpha_n of
    xielu.
    """
    if is_gated and up is None:
        x, up = x.chunk(2, dim=1)
    rows, size = x.shape
    out = x.new_empty((rows, size)) if out is None else out
    assert out.dtype == x.dtype, out.dtype
    assert out.shape == (rows, size), out.shape
    assert out.is_contiguous()
    assert out.data_ptr() % 16 == 0
    operands = (x, up) if up is not None else (x,)
    for operand in operands:
        _check_rows(operand, x.dtype, rows, size)
    if rows:
        kernel = activation_kernel(x.dtype, size, activation, is_gated)
        blocks_of_row = -(-size // (8 * kernel.threads))
        pointers = map(pointer, (out, x, up))
        strides = x.stride(0) // 8, 0 if up is None else up.stride(0) // 8
        params = ActivationParams(*pointers, count, *strides, *alphas)
        launcher.launch(kernel, (rows, blocks_of_row, 1), params)
    return out


def _check_rows(x: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Assert that rows may be read in packs of 8."""
    assert x.dtype == dtype, (x.dtype, dtype)
    assert x.shape == shape, (x.shape, shape)
    assert x.stride(1) == 1
    assert x.stride(0) % 8 == x.data_ptr() % 16 == 0


@cache
def activation_kernel(dtype: torch.dtype, size: int, activation: Activation, is_gated: bool) -> Kernel:
    """The kernel; each thread has one pack of 8 elements."""
    assert size % 8 == 0, size
    threads = min(-(-size // 256) * 32, MAX_ACTIVATION_THREADS)
    defines = ("SCALAR", SCALARS[dtype]), ("SIZE", size), ("ACTIVATION", activation), ("IS_GATED", int(is_gated))
    return Kernel("activation.cu", "activation", defines, threads)


class CapLogitsParams(ctypes.Structure):
    _fields_ = (
        *(("x", ctypes.c_void_p), ("stride", ctypes.c_int64), ("columns", ctypes.c_int)),
        *(("before", ctypes.c_float), ("cap", ctypes.c_float)),
    )


def cap_logits(launcher: Launcher, logits: Tensor, cap: float) -> Tensor:
    """Replace `logits` [rows, columns] float32 by cap * tanh(logits / cap) in place. Rows may be strided."""
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.stride(1) == 1, logits.stride()
    rows, columns = logits.shape
    kernel, params = cap_kernel(), (logits.data_ptr(), logits.stride(0), columns, -2 * LOG2_E / cap, cap)
    if rows:
        launcher.launch(kernel, (rows, -(-columns // kernel.threads), 1), CapLogitsParams(*params))
    return logits


@cache
def cap_kernel() -> Kernel:
    return Kernel("cap_logits.cu", "cap_logits", (), MAX_ACTIVATION_THREADS)


def production_kernels() -> list[Kernel]:
    """Norms of common sizes; the gated functions of Llama, Qwen and Gemma; each function without a gate."""
    bf16, fp16 = torch.bfloat16, torch.float16
    without_gate: tuple[Activation, ...] = ("gelu_tanh", "gelu_erf", "relu", "relu2", "xielu")
    return [
        *(rms_norm_kernel(dtype, size) for dtype in (bf16, fp16) for size in (1024, 4096, 8192)),
        *(layer_norm_kernel(bf16, size) for size in (768, 4096, 12288)),
        layer_norm_kernel(fp16, 4096),
        *(activation_kernel(dtype, 14336, "silu", True) for dtype in (bf16, fp16)),
        activation_kernel(bf16, 14336, "gelu_tanh", True),
        activation_kernel(bf16, 14336, "gelu_erf", True),
        *(activation_kernel(bf16, 16384, function, False) for function in without_gate),
        cap_kernel(),
    ]
