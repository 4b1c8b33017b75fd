"""The parameters of the CPU kernels: mirrors of the structs in csrc/cpu/api.h and its includes, and their packing."""

import ctypes
import struct
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

DTYPE_CODES = {torch.bfloat16: 0, torch.float32: 1, torch.float16: 2}  # dtypes of activations: Dtype of api.h


class PoolParams(ctypes.Structure):
    _fields_ = (("cpus", c_void_p), ("threads", c_int32), ("pin_caller", c_int32), ("spin_us", c_int32))


class GemmParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "weight", "bias", "residual")),
        *((name, c_int64) for name in ("x_stride", "y_stride")),
        *((name, c_int32) for name in ("rows", "outputs", "inputs", "y_dtype", "segments")),
    )


class QuantizeParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("codes", "scales", "sums", "x")),
        *((name, c_int64) for name in ("x_stride", "codes_stride")),
        *((name, c_int32) for name in ("rows", "inputs", "x_dtype")),
    )


class GemmInt8Params(ctypes.Structure):
    _fields_ = (("gemm", GemmParams), *((name, c_void_p) for name in ("x_scales", "x_sums", "weight_scales")))


class GemmInt4Params(ctypes.Structure):
    _fields_ = (
        ("gemm", GemmParams),
        *((name, c_void_p) for name in ("group_sums", "units")),
        *((name, c_int32) for name in ("group_size", "x_dtype")),
    )


class SumPartsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "parts", "bias")),
        *((name, c_int32) for name in ("count", "rows", "size", "y_dtype")),
    )


class EmbedParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "ids", "table", "scales")),
        ("y_stride", c_int64),
        *((name, c_int32) for name in ("rows", "outputs", "inputs", "y_dtype")),
        ("multiplier", c_float),
    )


class NormParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("out", "hidden", "delta", "weight", "bias")),
        *((name, c_int64) for name in ("hidden_stride", "out_stride")),
        *((name, c_int32) for name in ("rows", "size")),
        *((name, c_float) for name in ("eps", "multiplier")),
        *((name, c_int32) for name in ("is_centred", "dtype")),
    )


class ActivateParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("out", "x", "up")),
        ("up_stride", c_int64),
        *((name, c_int32) for name in ("rows", "size", "kind", "is_gated", "dtype")),
        *((name, c_float) for name in ("slope", "limit")),
    )


class ClipParams(ctypes.Structure):
    _fields_ = (("x", c_void_p), ("rows", c_int32), ("size", c_int32), ("limit", c_float), ("dtype", c_int32))


class CapParams(ctypes.Structure):
    _fields_ = (
        *(("x", c_void_p), ("stride", c_int64), ("rows", c_int32), ("columns", c_int32)),
        ("cap", c_float),
    )


class RotateParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("query", "projected", "query_norm", "key_norm", "query_bias", "key_bias")),
        *((name, c_void_p) for name in ("angles", "query_scales", "positions", "slots")),
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        *((name, c_int32) for name in ("tokens", "heads", "kv_heads", "head_dim", "block_size", "norm_stride")),
        ("eps", c_float),
        *((name, c_int32) for name in ("is_centred", "normalises_values", "dtype")),
    )


class ScanParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "best", "finite")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("rows", "vocab")),
    )


class MaskParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "indices", "masks", "mask_of", "best")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("count", "vocab")),
    )


class DrawParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "indices", "rows", "temperature", "log_min_p")),
        *((name, c_void_p) for name in ("top_k", "top_p", "uniform", "exclusions", "masks", "mask_of", "tokens")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("count", "vocab")),
    )


class LogprobParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "indices", "tokens", "counts", "ids", "logprobs", "ranks")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("count", "vocab", "width")),
    )


class AttentionParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("out", "query", "keys", "values", "key_scales", "value_scales")),
        *((name, c_void_p) for name in ("block_tables", "row_starts", "kv_lens", "slopes", "bias", "pairs", "sinks")),
        *((name, c_int64) for name in ("out_stride", "query_stride", "pairs_stride")),
        *((name, c_int32) for name in ("rows", "table_stride", "kv_heads", "group", "head_dim", "block_size")),
        *((name, c_int32) for name in ("window", "attention_chunk", "is_bidirectional", "bias_reach")),
        *((name, c_float) for name in ("scale", "cap")),
    )


class PackPart(ctypes.Structure):
    _fields_ = (("rows", c_void_p), ("stride", c_int64), ("outputs", c_int32), ("element", c_int32))


class PackParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("panels", "parts", "not_finite")),
        *((name, c_int32) for name in ("count", "outputs", "inputs", "element")),
    )


class PackInt4Params(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("panels", "codes", "scales", "zeros")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("outputs", "inputs", "group_size")),
    )


class UnpackCodesParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("codes", "words", "order")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("outputs", "inputs", "first", "bits", "layout")),
    )


class QuantizeWeightsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("codes", "scales", "errors", "rows")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("outputs", "inputs", "first_column", "columns", "element", "group_size")),
    )


class ReadFileParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("into", "sums", "failure")),
        *((name, c_int64) for name in ("offset", "bytes")),
        ("file", c_int32),
    )


class ReadPartsParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("addresses", "bytes", "sums", "failure")),
        ("offset", c_int64),
        *((name, c_int32) for name in ("count", "file")),
    )


class ProgramParams(ctypes.Structure):
    _fields_ = (("calls", c_void_p), ("count", c_int32))


API_KERNELS: dict[str, type[ctypes.Structure]] = {
    "gemm_bf16": GemmParams,
    "gemm_bf16_tile": GemmParams,
    "gemm_fp16": GemmParams,
    "gemm_fp16_tile": GemmParams,
    "gemm_fp32": GemmParams,
    "quantize_rows": QuantizeParams,
    "gemm_int8": GemmInt8Params,
    "gemm_int8_tile": GemmInt8Params,
    "gemm_int4": GemmInt4Params,
    "gemm_int4_tile": GemmInt4Params,
    "sum_parts": SumPartsParams,
    **dict.fromkeys(("embed_bf16", "embed_fp16", "embed_fp32", "embed_int8"), EmbedParams),
    "norm": NormParams,
    "activate": ActivateParams,
    "clip": ClipParams,
    "cap_logits": CapParams,
    "rotate_and_cache": RotateParams,
    "scan_logits": ScanParams,
    "mask_logits": MaskParams,
    "draw_tokens": DrawParams,
    "token_logprobs": LogprobParams,
    **dict.fromkeys(("attention_bf16", "attention_fp16", "attention_fp32"), AttentionParams),
    **dict.fromkeys(("attention_int8", "attention_int8_fp16"), AttentionParams),
    "pack_rows": PackParams,
    "pack_int4": PackInt4Params,
    "unpack_codes": UnpackCodesParams,
    "quantize_weights": QuantizeWeightsParams,
    "read_file": ReadFileParams,
    "read_parts": ReadPartsParams,
    **dict.fromkeys(("attention_bf16_tile", "attention_int8_tile"), AttentionParams),
    "run_program": ProgramParams,
}


def pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def packer(params: type[ctypes.Structure]) -> Callable[..., bytes]:
    """A function that packs a struct's fields in order, with inner structs flattened, in a third of ctypes' time.

    Pointers are integers, 0 for null. The resulting bytes are passed to the kernel.
    """
    return struct.Struct(_format(params)).pack


def _format(params: type[ctypes.Structure]) -> str:
    codes = {c_void_p: "P", c_int32: "i", c_int64: "q", c_float: "f"}
    kinds = [field[1] for field in params._fields_]
    return "".join(_format(kind) if issubclass(kind, ctypes.Structure) else codes[kind] for kind in kinds)
