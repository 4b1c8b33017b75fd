"""The kernels of Mamba 1. A token's bits depend only on its request's tokens."""

import torch
from torch import Tensor

from ....checkpoint.recurrent.columns import state_shape
from ....kv.state_rows import StateRows
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import Mamba1ScanParams, NormPartsParams
from .state_rows import state_fields

SCAN, NORM_PARTS = packer(Mamba1ScanParams), packer(NormPartsParams)
STATE_MULTIPLE = 8


def mamba1_scan(
    pool: Pool,
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
    exponents, *vectors = per_channel
    assert state_size % STATE_MULTIPLE == 0, state_size
    assert b_and_c.shape == (tokens, 2 * state_size), b_and_c.shape
    assert dt.shape == out.shape == x.shape, (dt.shape, out.shape)
    assert states.dtype == torch.float32, states.dtype
    assert states.shape[1:] == exponents.shape == state_shape(1, channels, state_size), states.shape
    assert all(each.shape == (channels,) for each in vectors)
    assert all(each.dtype == torch.float32 and each.is_contiguous() for each in per_channel)
    assert all(each.dtype == x.dtype and each.stride(1) == 1 for each in (x, dt, b_and_c, out))
    b = b_and_c.data_ptr()
    pointers = out.data_ptr(), x.data_ptr(), dt.data_ptr(), b, b + state_size * b_and_c.itemsize
    strides = (each.stride(0) for each in (out, x, dt, b_and_c))
    rest = *(each.data_ptr() for each in per_channel), *strides, channels, state_size, DTYPE_CODES[x.dtype]
    pool.functions["mamba1_scan"](pool.handle, SCAN(*state_fields(rows, states), *pointers, *rest))
    return out


def norm_parts(pool: Pool, x: Tensor, weight: Tensor | None, sizes: tuple[int, int], eps: float, out: Tensor) -> Tensor:
    """Set `out` as SelectiveScan.normed_parts has it; `sizes` are steps and state_size, rows may be strided."""
    steps, state_size = sizes
    assert x.shape == out.shape == (len(x), steps + 2 * state_size), x.shape
    assert x.dtype == out.dtype
    assert x.stride(1) == out.stride(1) == 1
    assert weight is None or (weight.dtype == torch.float32 and weight.shape == x.shape[1:] and weight.is_contiguous())
    pointers = out.data_ptr(), x.data_ptr(), 0 if weight is None else weight.data_ptr()
    fields = NORM_PARTS(*pointers, out.stride(0), x.stride(0), len(x), *sizes, eps, DTYPE_CODES[x.dtype])
    pool.functions["norm_parts"](pool.handle, fields)
    return out
