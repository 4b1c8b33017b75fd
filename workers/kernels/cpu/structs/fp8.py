"""The parameters of the kernels for weights in e4m3 codes: mirrors of the structs in csrc/cpu/fp8/fp8.h."""

import ctypes
from ctypes import c_int32, c_void_p

from ..parameters import GemmParams
from .experts import ExpertSlices


class GemmFp8Params(ctypes.Structure):
    _fields_ = (("gemm", GemmParams), ("scales", c_void_p), ("group_inputs", c_int32))


class ExpertGemmFp8Params(ctypes.Structure):
    _fields_ = (("product", GemmFp8Params), ("slices", ExpertSlices))


FP8_KERNELS: dict[str, type[ctypes.Structure]] = {
    **dict.fromkeys(("gemm_fp8", "gemm_fp8_tile"), GemmFp8Params),
    **dict.fromkeys(("expert_gemm_fp8", "expert_gemm_fp8_tile"), ExpertGemmFp8Params),
}
