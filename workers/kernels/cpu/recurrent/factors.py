"""Products of elements: of rows with gates or with numbers, and of columns with constants; and copies of rows.

A row's bits depend only on that row.
"""

import torch
from torch import Tensor

from ...shapes.recurrent import check_gate
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import CopyParams, ScaleByPositionParams, ScaleParams, SigmoidGateParams

GATE, SCALE, BY_POSITION, COPY = map(packer, (SigmoidGateParams, ScaleParams, ScaleByPositionParams, CopyParams))


def silu_gate(pool: Pool, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, size] as Recurrences.silu_gated has it; rows may be strided."""
    return _gated(pool, "silu_gate", x, gate, out)


def softplus_gate(pool: Pool, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """Likewise as Recurrences.softplus_gated has it."""
    return _gated(pool, "softplus_gate", x, gate, out)


def _gated(pool: Pool, kernel: str, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    check_gate(x, gate, out)
    strides = out.stride(0), x.stride(0), gate.stride(0)
    fields = GATE(out.data_ptr(), x.data_ptr(), gate.data_ptr(), *strides, *x.shape, DTYPE_CODES[x.dtype])
    pool.functions[kernel](pool.handle, fields)
    return out


def scale_columns(pool: Pool, x: Tensor, factors: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, size], which may be `x`, to `x` times `factors` [size] float32; rows may be strided."""
    assert out.shape == x.shape
    assert x.dtype == out.dtype
    assert x.stride(1) == out.stride(1) == 1
    assert factors.dtype == torch.float32, factors.dtype
    assert factors.shape == (x.shape[1],), factors.shape
    assert factors.is_contiguous()
    pointers = out.data_ptr(), x.data_ptr(), factors.data_ptr()
    fields = SCALE(*pointers, out.stride(0), x.stride(0), *x.shape, DTYPE_CODES[x.dtype])
    pool.functions["scale_columns"](pool.handle, fields)
    return out


def scale_by_position(pool: Pool, x: Tensor, factors: Tensor, positions: Tensor) -> Tensor:
    """Multiply rows of `x` [rows, size], which may be strided, by `factors` float32 at their `positions` [rows]."""
    assert x.stride(1) == 1
    assert factors.dtype == torch.float32, factors.dtype
    assert positions.dtype == torch.int64, positions.dtype
    assert positions.shape == (len(x),), positions.shape
    assert factors.is_contiguous()
    assert positions.is_contiguous()
    pointers = x.data_ptr(), factors.data_ptr(), positions.data_ptr()
    pool.functions["scale_by_position"](
        pool.handle, BY_POSITION(*pointers, x.stride(0), *x.shape, DTYPE_CODES[x.dtype])
    )
    return x


def copy_rows(pool: Pool, x: Tensor, out: Tensor) -> Tensor:
    """Set `out` [rows, size], contiguous, to `x`, whose rows may be strided."""
    assert out.shape == x.shape
    assert x.dtype == out.dtype
    assert x.stride(1) == 1
    assert out.is_contiguous()
    fields = COPY(out.data_ptr(), x.data_ptr(), x.stride(0), *x.shape, DTYPE_CODES[x.dtype])
    pool.functions["copy_rows"](pool.handle, fields)
    return out
