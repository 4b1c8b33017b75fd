"""Root-mean-square normalisation, fused with the addition before it."""

import ctypes

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

MAX_THREADS = 1024


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
    threads = min(-(-size // 256) * 32, MAX_THREADS)
    defines = (("SCALAR", SCALARS[dtype]), ("SIZE", size))
    return Kernel("rms_norm.cu", "rms_norm", defines, threads, shared_bytes=threads // 32 * 4)


def production_kernels() -> list[Kernel]:
    return [rms_norm_kernel(dtype, size) for dtype in (torch.bfloat16, torch.float16) for size in (1024, 4096, 8192)]
