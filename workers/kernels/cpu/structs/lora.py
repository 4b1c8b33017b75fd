"""The parameters of the kernels of LoRA adapters: mirrors of the structs in csrc/cpu/lora/lora.h."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class LoraPart(ctypes.Structure):
    _fields_ = (("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("scale", c_float))


class LoraParams(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("y", "x", "sums", "early", "groups", "table", "starts")),
        *((name, c_int64) for name in ("x_stride", "y_stride")),
        *((name, c_int32) for name in ("rows", "parts", "inputs", "max_rank")),
        *((name, c_int32) for name in ("segments", "shares", "dtype", "y_dtype")),
    )


LORA_KERNELS: dict[str, type[ctypes.Structure]] = dict.fromkeys(
    ("lora_announce", "lora_shrink", "lora_look_up", "lora_expand"), LoraParams
)
