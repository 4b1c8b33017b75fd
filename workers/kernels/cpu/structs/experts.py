"""The parameters of the kernels of mixtures of experts: mirrors of the structs in csrc/cpu/experts/."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from ..parameters import ActivateParams, GemmInt4Params, GemmInt8Params, GemmParams, QuantizeParams


class RouteParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "correction", "factors", "experts", "weights", "places", "starts")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("rows", "num_experts", "top_k", "groups", "top_groups")),
        *((name, c_int32) for name in ("first_expert", "held_experts", "score", "renormalises")),
        *((name, c_float) for name in ("scale", "jitter")),
    )


class DispatchParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "places", "weights")),
        ("x_stride", c_int64),
        *((name, c_int32) for name in ("rows", "size", "top_k", "dtype")),
    )


class CombineParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "outputs", "experts", "places", "weights")),
        ("y_stride", c_int64),
        *((name, c_int32) for name in ("rows", "size", "top_k", "num_experts", "first_share", "shares", "y_dtype")),
    )


class AddIdentitiesParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "routed", "x", "experts", "weights")),
        *((name, c_int64) for name in ("stride", "x_stride")),
        *((name, c_int32) for name in ("rows", "size", "top_k", "num_experts", "dtype")),
    )


class AddSharedParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "routed", "shared", "gates")),
        *((name, c_int64) for name in ("stride", "gate_stride")),
        *((name, c_int32) for name in ("rows", "size", "y_dtype")),
    )


class ExpertSlices(ctypes.Structure):
    _fields_ = (("starts", c_void_p), ("experts", c_int32))


class ExpertGemmParams(ctypes.Structure):
    _fields_ = (("product", GemmParams), ("slices", ExpertSlices))


class ExpertGemmInt8Params(ctypes.Structure):
    _fields_ = (("product", GemmInt8Params), ("slices", ExpertSlices))


class ExpertGemmInt4Params(ctypes.Structure):
    _fields_ = (("product", GemmInt4Params), ("slices", ExpertSlices))


class CountedQuantizeParams(ctypes.Structure):
    _fields_ = (("quantize", QuantizeParams), ("count", c_void_p))


class CountedActivateParams(ctypes.Structure):
    _fields_ = (("activate", ActivateParams), ("count", c_void_p))


EXPERT_KERNELS: dict[str, type[ctypes.Structure]] = {
    "route_experts": RouteParams,
    "dispatch_rows": DispatchParams,
    "combine_experts": CombineParams,
    "add_identities": AddIdentitiesParams,
    "add_shared_expert": AddSharedParams,
    **dict.fromkeys(("expert_gemm_bf16", "expert_gemm_fp16", "expert_gemm_fp32"), ExpertGemmParams),
    **dict.fromkeys(("expert_gemm_bf16_tile", "expert_gemm_fp16_tile"), ExpertGemmParams),
    "expert_gemm_int8": ExpertGemmInt8Params,
    **dict.fromkeys(("expert_gemm_int4", "expert_gemm_int4_tile"), ExpertGemmInt4Params),
    **dict.fromkeys(("gemm_mxfp4", "gemm_mxfp4_tile"), GemmInt4Params),
    **dict.fromkeys(("expert_gemm_mxfp4", "expert_gemm_mxfp4_tile"), ExpertGemmInt4Params),
    "quantize_counted": CountedQuantizeParams,
    "activate_counted": CountedActivateParams,
}
