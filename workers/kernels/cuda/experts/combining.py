"""The operations around the products of experts: weighed inputs, activations, and the sum of each token's outputs."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ....geometry.experts import NUM_SHARES
from ....geometry.model_options import Activation
from ..kernel import SCALARS, Kernel, Launcher, pointer
from .routing import Choice, Places

MAX_THREADS = 256


class WeighExpertsParams(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("out", "x", "places", "weights"))


class ClampedGateParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "count")),
        *((name, ctypes.c_float) for name in ("slope", "limit")),
    )


class CombineExpertsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "outputs", "experts", "places", "weights", "shared", "gates")),
        *((name, ctypes.c_int) for name in ("rows", "num_experts", "first_share")),
    )


class JoinExpertsParams(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_void_p) for name in ("out", "parts", "gates")), ("rows", ctypes.c_int))


class Sums(NamedTuple):
    """The sums that a combination adds: `shares` of the experts, `segments` of the shared expert (0: there is none).

    With `is_part` the result is a rank's float32 part, which others join.
    """

    shares: int
    segments: int
    is_part: bool


def weigh_experts(launcher: Launcher, x: Tensor, choice: Choice, places: Places) -> Tensor:
    """Copies of rows of `x` [rows, size] in their places, times their weights: [places, size].

    Places that are not in use may hold anything.
    """
    entries, (rows, size) = places.places.numel(), x.shape
    assert x.is_contiguous()
    assert len(places.places) == rows
    out = x.new_empty((entries, size))
    tensors = out, x, places.places, choice.weights
    if entries:
        kernel = weigh_kernel(x.dtype, size, places.places.shape[1])
        params = WeighExpertsParams(*(tensor.data_ptr() for tensor in tensors))
        launcher.launch(kernel, _grid(kernel, entries, size), params)
    return out


def weigh_kernel(dtype: torch.dtype, size: int, top_k: int) -> Kernel:
    return _kernel("weigh", "weigh_experts", (("SCALAR", SCALARS[dtype]), ("SIZE", size), ("TOP_K", top_k)), size)


def clamped_gate(
    launcher: Launcher, x: Tensor, activation: Activation, count: int | None = None, out: Tensor | None = None
) -> Tensor:
    """The clamped activation of [rows, 2 * n], gate then up, for the rows in use. Returns [rows, n].

    `count` is the address of the number of rows in use; None: all.
    """
    rows, size = len(x), x.shape[1] // 2
    assert activation.kind == "clamped", activation
    assert x.is_contiguous()
    assert x.data_ptr() % 16 == 0
    out = x.new_empty((rows, size)) if out is None else out
    assert out.shape == (rows, size), out.shape
    assert out.dtype == x.dtype, out.dtype
    assert out.is_contiguous()
    kernel = clamped_kernel(x.dtype, size)
    if rows:
        params = ClampedGateParams(out.data_ptr(), x.data_ptr(), count, activation.slope, activation.limit)
        launcher.launch(kernel, _grid(kernel, rows, size), params)
    return out


def clamped_kernel(dtype: torch.dtype, size: int) -> Kernel:
    return _kernel("clamped_gate", "clamped_gate", (("SCALAR", SCALARS[dtype]), ("SIZE", size)), size)


def combine_experts(
    launcher: Launcher,
    outputs: Tensor,
    choice: Choice,
    places: Places,
    num_experts: int,
    shares: range,
    out: Tensor,
    *,
    shared: Tensor | None = None,
    weighed: bool = True,
) -> Tensor:
    """Set `out` to the sum of each row's `outputs` [places, size] float32, times their weights if `weighed`.

    A share of the experts is summed in their order, from 0; `shares` are this rank's 1, 2 or 4, and are added as
    (0 + 1) + (2 + 3). So are the segments of `shared` [segments, rows, size] float32. A 16-bit `out` [rows, size] is
    the whole sum, the gated shared one included, rounded once. A float32 `out` is this rank's part: [rows, size], or
    with `shared` [rows, 2 * size], both sums side by side.
    """
    rows, size = len(places.places), outputs.shape[1]
    sums = Sums(len(shares), 0 if shared is None else len(shared), out.dtype == torch.float32)
    assert outputs.dtype == torch.float32, outputs.dtype
    assert outputs.shape == (places.places.numel(), size), outputs.shape
    assert out.shape == (rows, size * 2 if sums.is_part and shared is not None else size), out.shape
    assert shared is None or (shared.dtype == torch.float32 and shared.shape[1:] == (rows, size))
    for tensor in (outputs, out, shared):
        assert tensor is None or (tensor.is_contiguous() and tensor.data_ptr() % 16 == 0)
    dtype = torch.bfloat16 if sums.is_part else out.dtype
    kernel = combine_kernel(dtype, size, choice.experts.shape[1], sums)
    tensors = out, outputs, choice.experts, places.places, choice.weights if weighed else None, shared, choice.gates
    pointers = map(pointer, tensors)
    if rows:
        params = CombineExpertsParams(*pointers, rows, num_experts, shares.start)
        launcher.launch(kernel, _grid(kernel, rows, size), params)
    return out


def combine_kernel(dtype: torch.dtype, size: int, top_k: int, sums: Sums) -> Kernel:
    """The kernel; `dtype` is that of the result, and bfloat16 for a part, which has none."""
    assert sums.shares in (1, 2, NUM_SHARES), sums
    assert sums.segments in (0, 1, 2, 4), sums
    defines = (
        *(("SCALAR", SCALARS[dtype]), ("SIZE", size), ("TOP_K", top_k), ("SHARES", sums.shares)),
        *(("SEGMENTS", sums.segments), ("IS_PART", int(sums.is_part))),
    )
    return _kernel("combine", "combine_experts", defines, size)


def join_experts(launcher: Launcher, parts: Tensor, gates: Tensor | None, out: Tensor) -> Tensor:
    """Set `out` [rows, size] to the sum of the ranks' `parts` [ranks, rows, size] float32, rounded once.

    Parts of 2 * `size` columns have sums of the shared expert, too, which are multiplied by `gates` [rows] float32.
    """
    (ranks, rows, columns), size = parts.shape, out.shape[1]
    assert parts.dtype == torch.float32, parts.dtype
    assert columns in (size, 2 * size), columns
    assert out.shape == (rows, size), out.shape
    for tensor in (parts, out):
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
    kernel = join_kernel(out.dtype, size, ranks, columns > size)
    if rows:
        pointers = out.data_ptr(), parts.data_ptr(), pointer(gates)
        launcher.launch(kernel, _grid(kernel, rows, size), JoinExpertsParams(*pointers, rows))
    return out


def join_kernel(dtype: torch.dtype, size: int, ranks: int, has_shared: bool) -> Kernel:
    assert ranks in (1, 2, NUM_SHARES), ranks
    defines = ("SCALAR", SCALARS[dtype]), ("SIZE", size), ("RANKS", ranks), ("HAS_SHARED", int(has_shared))
    return _kernel("join", "join_experts", defines, size)


def production_kernels() -> list[Kernel]:
    """Kernels of Qwen3-30B-A3B, Llama 4, gpt-oss and GLM-4.5, on one rank and on several."""
    bf16, fp16 = torch.bfloat16, torch.float16
    return [
        weigh_kernel(bf16, 5120, 1),
        *(clamped_kernel(dtype, 2880) for dtype in (bf16, fp16)),
        combine_kernel(bf16, 2048, 8, Sums(4, 0, False)),
        combine_kernel(fp16, 2880, 4, Sums(2, 0, True)),
        combine_kernel(bf16, 4096, 8, Sums(4, 4, False)),
        combine_kernel(bf16, 4096, 8, Sums(1, 1, True)),
        join_kernel(bf16, 4096, 4, True),
        join_kernel(fp16, 2880, 2, False),
    ]


def _kernel(file: str, function: str, defines: tuple[tuple[str, int | str], ...], size: int) -> Kernel:
    """A kernel whose threads have one pack of 8 elements of a row each."""
    assert size % 8 == 0, size
    return Kernel(f"experts/{file}.cu", function, defines, min(-(-size // 256) * 32, MAX_THREADS))


def _grid(kernel: Kernel, rows: int, size: int) -> tuple[int, int, int]:
    return rows, -(-size // (8 * kernel.threads)), 1
