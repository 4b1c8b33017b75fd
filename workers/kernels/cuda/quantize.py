"""Quantizes rows of activations to e4m3 with one scale per row, for 8-bit products."""

import ctypes
from functools import cache

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

MAX_THREADS = 512  # beyond this, each thread processes several packs


class QuantizeRowsParams(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("codes", "scales", "hidden"))


def quantize_rows(launcher: Launcher, hidden: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Quantize `hidden` [rows, size] to `codes` [rows, size] float8_e4m3fn times `scales` [rows, 1] float32.

    `hidden` is bfloat16 or float16; `size` is a multiple of 8.
    """
    rows, size = hidden.shape
    assert codes.shape == hidden.shape, codes.shape
    assert codes.dtype == torch.float8_e4m3fn, codes.dtype
    assert scales.shape == (rows, 1), scales.shape
    assert scales.dtype == torch.float32, scales.dtype
    for tensor in (hidden, codes, scales):
        assert tensor.is_contiguous()
    assert hidden.data_ptr() % 16 == codes.data_ptr() % 8 == 0
    if rows:
        params = QuantizeRowsParams(*(tensor.data_ptr() for tensor in (codes, scales, hidden)))
        launcher.launch(quantize_rows_kernel(hidden.dtype, size), (rows, 1, 1), params)


@cache
def quantize_rows_kernel(dtype: torch.dtype, size: int) -> Kernel:
    """The kernel; each thread has one pack of 8 elements if a block is large enough."""
    assert size % 8 == 0, size
    threads = min(-(-size // 256) * 32, MAX_THREADS)
    defines = (("SCALAR", SCALARS[dtype]), ("SIZE", size))
    return Kernel("quantize_rows.cu", "quantize_rows", defines, threads, shared_bytes=threads // 32 * 4)


def production_kernels() -> list[Kernel]:
    """Kernels for the inputs of Llama's and Qwen's products."""
    return [quantize_rows_kernel(torch.bfloat16, size) for size in (1024, 4096, 14336)]
