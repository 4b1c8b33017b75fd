"""The parameters of the kernels for weights in the blocks of GGUF files: mirrors of csrc/cpu/blocks/parameters.h."""

import ctypes
from ctypes import c_int32, c_int64, c_void_p

from ....checkpoint.packed_weight import BLOCK_FORMATS
from ..parameters import EmbedParams, GemmParams, PackParams
from .experts import ExpertSlices


class GemmBlocksParams(ctypes.Structure):
    _fields_ = (("gemm", GemmParams), ("skipped", c_int64), ("x_dtype", c_int32))


class ExpertGemmBlocksParams(ctypes.Structure):
    _fields_ = (("product", GemmBlocksParams), ("slices", ExpertSlices))


class PackBlocksParams(ctypes.Structure):
    _fields_ = (("pack", PackParams), ("grid", c_void_p))


BLOCK_KERNELS: dict[str, type[ctypes.Structure]] = {
    **dict.fromkeys((f"gemm_{name}" for name in BLOCK_FORMATS), GemmBlocksParams),
    **dict.fromkeys((f"expert_gemm_{name}" for name in BLOCK_FORMATS), ExpertGemmBlocksParams),
    **dict.fromkeys((f"embed_{name}" for name in BLOCK_FORMATS), EmbedParams),
    "pack_blocks": PackBlocksParams,
}
