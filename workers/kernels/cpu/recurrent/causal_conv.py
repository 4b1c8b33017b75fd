"""Depthwise causal convolutions over a row's last positions."""

from torch import Tensor

from ....kv.state_rows import StateRows
from ...shapes.recurrent import check_convolution, state_fields
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.recurrent import CausalConvParams

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
    check_convolution(states, weight, bias, x, out, (x_factors, y_factors))
    optional = map(pointer, (x_factors, y_factors))
    fields = PARAMS(
        *(*state_fields(rows, states), out.data_ptr(), x.data_ptr(), *optional, weight.data_ptr()),
        pointer(bias),
        *(x.stride(0), out.stride(0), channels, width, activates, DTYPE_CODES[x.dtype]),
    )
    pool.functions["causal_conv"](pool.handle, fields)
    return out
