"""Depthwise causal convolutions over a row's last positions."""

import torch
from torch import Tensor

from ....kv.state_rows import StateRows
from ..library import Pool
from ..parameters import DTYPE_CODES, packer
from ..structs.recurrent import CausalConvParams
from .state_rows import state_fields

PARAMS = packer(CausalConvParams)
WIDTHS = range(2, 9)  # that the kernel supports


def causal_conv(
    pool: Pool,
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
    width, channels = weight.shape
    assert width in WIDTHS, width
    assert x.shape[1] == channels
    assert weight.dtype == torch.float32, weight.dtype
    assert weight.is_contiguous()
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (channels,))
    assert states.shape[1:] == (width - 1, channels), states.shape
    assert states.dtype == x.dtype == out.dtype
    assert out.shape == x.shape
    assert out.stride(1) == x.stride(1) == 1
    for factors in (x_factors, y_factors):
        assert factors is None or (factors.dtype == x.dtype and factors.shape == x.shape)
        assert factors is None or factors.stride() == x.stride()
    optional = (0 if each is None else each.data_ptr() for each in (x_factors, y_factors))
    fields = PARAMS(
        *(*state_fields(rows, states), out.data_ptr(), x.data_ptr(), *optional, weight.data_ptr()),
        0 if bias is None else bias.data_ptr(),
        *(x.stride(0), out.stride(0), channels, width, activates, DTYPE_CODES[x.dtype]),
    )
    pool.functions["causal_conv"](pool.handle, fields)
    return out
