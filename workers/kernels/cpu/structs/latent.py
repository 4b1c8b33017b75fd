"""Mirrors of the structs in csrc/cpu/latent/latent.h and indexer.h."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from ..parameters import AttentionParams, GemmParams


class HeadGemmParams(ctypes.Structure):
    _fields_ = (
        ("product", GemmParams),
        *((name, c_int64) for name in ("weight_stride", "x_step", "y_step")),
        ("heads", c_int32),
    )


class CacheLatentsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("rows", "latents", "norm", "angles", "positions", "slots")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("tokens", "kv_rank", "rope_dim", "row_dim")),
        ("eps", c_float),
        ("dtype", c_int32),
    )


class RotateHeadsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("out", "query", "angles", "positions")),
        *((name, c_int64) for name in ("out_stride", "query_stride", "out_step", "query_step")),
        *((name, c_int32) for name in ("tokens", "heads", "rope_dim", "dtype")),
    )


class LatentAttentionParams(ctypes.Structure):
    _fields_ = (("attention", AttentionParams), ("value_dim", c_int32), ("row_dim", c_int32))


class CacheIndexKeysParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("rows", "keys", "angles", "positions", "slots")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("row_dim", "tokens", "index_dim", "rope_dim", "dtype")),
    )


class SelectKeysParams(ctypes.Structure):
    _sizes = ("row_dim", "tokens", "requests", "table_stride", "block_size", "heads", "index_dim", "top_k")
    _fields_ = (
        *((name, c_void_p) for name in ("tables", "row_starts", "kv_lens", "query", "weights", "rows")),
        *((name, c_void_p) for name in ("block_tables", "request_starts", "request_lens")),
        *((name, c_int64) for name in ("query_stride", "weights_stride")),
        *((name, c_int32) for name in _sizes),
        *((name, c_float) for name in ("scale", "weights_scale")),
        ("dtype", c_int32),
    )


DTYPES = ("bf16", "bf16_tile", "fp16", "fp32")
LATENT_KERNELS: dict[str, type[ctypes.Structure]] = {
    **{f"head_gemm_{dtype}": HeadGemmParams for dtype in (*DTYPES, "fp16_tile")},
    **{f"latent_attention_{dtype}": LatentAttentionParams for dtype in DTYPES},
    "cache_latents": CacheLatentsParams,
    "rotate_heads": RotateHeadsParams,
    "cache_index_keys": CacheIndexKeysParams,
    "select_keys": SelectKeysParams,
}
