"""The parameters of the kernels for weights in the blocks of GGUF files: mirrors of csrc/cpu/blocks/parameters.h."""

import ctypes
from ctypes import c_int32

from ..parameters import EmbedParams, GemmParams, PackParams


class GemmBlocksParams(ctypes.Structure):
    _fields_ = (("gemm", GemmParams), ("skipped", c_int32), ("x_dtype", c_int32))


BLOCK_KERNELS: dict[str, type[ctypes.Structure]] = {
    **dict.fromkeys(("gemm_q8_0", "gemm_q4_k", "gemm_q5_k", "gemm_q6_k"), GemmBlocksParams),
    **dict.fromkeys(("embed_q8_0", "embed_q4_k", "embed_q5_k", "embed_q6_k"), EmbedParams),
    "pack_blocks": PackParams,
}
