"""What all kernels of recurrent layers know of a step's rows and of a layer's states."""

import ctypes

from torch import Tensor

from ....kv.state_rows import StateRows
from ...shapes.recurrent import state_fields


class StateRowsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("row_starts", "kv_lens", "stored_lens", "block_tables", "states")),
        ("block_stride", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("rows", "table_stride", "block_size")),
    )


def state_rows_params(rows: StateRows, states: Tensor) -> StateRowsParams:
    """The parameters of `rows`; `states` [blocks, ...] has contiguous blocks, at any distance."""
    return StateRowsParams(*state_fields(rows, states))
