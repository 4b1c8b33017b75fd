"""The parameters of every kernel, by its name."""

import ctypes

from ..parameters import API_KERNELS
from .blocks import BLOCK_KERNELS
from .experts import EXPERT_KERNELS
from .fp8 import FP8_KERNELS
from .latent import LATENT_KERNELS
from .lora import LORA_KERNELS
from .recurrent import RECURRENT_KERNELS

KERNELS: dict[str, type[ctypes.Structure]] = {
    **API_KERNELS,
    **BLOCK_KERNELS,
    **EXPERT_KERNELS,
    **FP8_KERNELS,
    **LATENT_KERNELS,
    **LORA_KERNELS,
    **RECURRENT_KERNELS,
}
