"""The parameters of the kernels of recurrent layers: mirrors of the structs in csrc/cpu/recurrent/parameters.h."""

import ctypes
from ctypes import c_int32, c_int64, c_void_p


class StateRows(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("row_starts", "kv_lens", "block_tables", "states")),
        ("block_stride", c_int64),
        *((name, c_int32) for name in ("rows", "table_stride", "block_size")),
    )


class CausalConvParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRows),
        *((name, c_void_p) for name in ("y", "x", "x_factors", "y_factors", "weight", "bias")),
        *((name, c_int64) for name in ("x_stride", "y_stride")),
        *((name, c_int32) for name in ("channels", "width", "activates", "dtype")),
    )


RECURRENT_KERNELS: dict[str, type[ctypes.Structure]] = {"causal_conv": CausalConvParams}
