"""The parameters of the kernels of recurrent layers: mirrors of the structs in csrc/cpu/recurrent/."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class StateRows(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("row_starts", "kv_lens", "stored_lens", "block_tables", "states")),
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


class Mamba1ScanParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRows),
        *((name, c_void_p) for name in ("y", "x", "dt", "b", "c", "a", "d", "dt_bias")),
        *((name, c_int64) for name in ("y_stride", "x_stride", "dt_stride", "b_stride")),
        *((name, c_int32) for name in ("channels", "state_size", "dtype")),
    )


class NormPartsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "weight")),
        *((name, c_int64) for name in ("y_stride", "x_stride")),
        *((name, c_int32) for name in ("rows", "steps", "state_size")),
        ("eps", c_float),
        ("dtype", c_int32),
    )


class Mamba2ScanParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRows),
        *((name, c_void_p) for name in ("y", "x", "b", "c", "dt", "a", "d", "dt_bias")),
        *((name, c_int64) for name in ("y_stride", "x_stride", "dt_stride")),
        *((name, c_int32) for name in ("heads", "head_dim", "groups", "state_size")),
        *((name, c_float) for name in ("least_dt", "greatest_dt")),
        ("dtype", c_int32),
    )


class GatedDeltaParams(ctypes.Structure):
    _fields_ = (
        ("rows", StateRows),
        *((name, c_void_p) for name in ("y", "query", "key", "value", "b", "alpha", "a", "dt_bias")),
        *((name, c_int64) for name in ("y_stride", "x_stride", "b_stride", "alpha_stride")),
        *((name, c_int32) for name in ("heads", "key_heads", "decays", "key_dim", "value_dim")),
        *((name, c_float) for name in ("scale", "eps", "max_beta", "lower_bound")),
        ("dtype", c_int32),
    )


class GatedNormParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "gate", "weight")),
        *((name, c_int64) for name in ("y_stride", "x_stride", "gate_stride")),
        *((name, c_int32) for name in ("rows", "size", "group_size", "gates_last", "sigmoid_gates")),
        ("eps", c_float),
        ("dtype", c_int32),
    )


class SigmoidGateParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "gate")),
        *((name, c_int64) for name in ("y_stride", "x_stride", "gate_stride")),
        *((name, c_int32) for name in ("rows", "size", "dtype")),
    )


class ScaleParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "factors")),
        *((name, c_int64) for name in ("y_stride", "x_stride")),
        *((name, c_int32) for name in ("rows", "size", "dtype")),
    )


class ScaleByPositionParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "factors", "positions")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("rows", "size", "dtype")),
    )


class CopyParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x")),
        ("x_stride", c_int64),
        *((name, c_int32) for name in ("rows", "size", "dtype")),
    )


RECURRENT_KERNELS: dict[str, type[ctypes.Structure]] = {
    "causal_conv": CausalConvParams,
    "mamba1_scan": Mamba1ScanParams,
    "norm_parts": NormPartsParams,
    "mamba2_scan": Mamba2ScanParams,
    "gated_delta": GatedDeltaParams,
    "gated_norm": GatedNormParams,
    "sigmoid_gate": SigmoidGateParams,
    "silu_gate": SigmoidGateParams,
    "softplus_gate": SigmoidGateParams,
    "scale_columns": ScaleParams,
    "scale_by_position": ScaleByPositionParams,
    "copy_rows": CopyParams,
}
