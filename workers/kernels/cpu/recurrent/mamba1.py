"""The kernels of Mamba 1. A token's bits depend only on its request's tokens."""

from torch import Tensor

from ....geometry.recurrent.mamba1 import STATE_MULTIPLE
from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_mamba1, check_norm_parts, state_fields
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.recurrent import Mamba1ScanParams, NormPartsParams

SCAN, NORM_PARTS = packer(Mamba1ScanParams), packer(NormPartsParams)


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
    channels, state_size = x.shape[1], b_and_c.shape[1] // 2
    assert state_size % STATE_MULTIPLE == 0, state_size
    check_mamba1(states, x, dt, b_and_c, per_channel, out)
    b = b_and_c.data_ptr()
    pointers = out.data_ptr(), x.data_ptr(), dt.data_ptr(), b, b + state_size * b_and_c.itemsize
    strides = (each.stride(0) for each in (out, x, dt, b_and_c))
    rest = *(each.data_ptr() for each in per_channel), *strides, channels, state_size, DTYPE_CODES[x.dtype]
    pool.functions["mamba1_scan"](pool.handle, SCAN(*state_fields(rows, states), *pointers, *rest))
    return out


def norm_parts(pool: Pool, x: Tensor, weight: Tensor | None, sizes: tuple[int, int], eps: float, out: Tensor) -> Tensor:
    """Set `out` as SelectiveScan.normed_parts has it; `sizes` are steps and state_size, rows may be strided."""
    check_norm_parts(x, weight, sizes, out)
    pointers = out.data_ptr(), x.data_ptr(), pointer(weight)
    fields = NORM_PARTS(*pointers, out.stride(0), x.stride(0), len(x), *sizes, eps, DTYPE_CODES[x.dtype])
    pool.functions["norm_parts"](pool.handle, fields)
    return out
