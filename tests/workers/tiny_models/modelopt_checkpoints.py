"""The formats of NVIDIA's ModelOpt, in the layouts of its exported checkpoints."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .quantized_checkpoints import Format, Packed, block_fp8, matrix_fp8


def modelopt_config(quant_algo: str, **fields: Any) -> dict[str, Any]:
    """The settings in config.json."""
    whole = {"quant_algo": quant_algo, "ignore": ["lm_head", "*.o_proj"], "producer": {"name": "modelopt"}}
    return {"quant_method": "modelopt", **whole, **fields}


def own_file(config: dict[str, Any], kv_cache: str | None = None) -> dict[str, Any]:
    """The same settings as in hf_quant_config.json."""
    settings = {"quant_algo": config["quant_algo"], "kv_cache_quant_algo": kv_cache}
    return {"producer": config["producer"], "quantization": {**settings, "exclude_modules": config["ignore"]}}


def fp8_per_output() -> Format:
    def pack(weight: Tensor) -> Packed:
        scales = weight.abs().amax(1) / 448
        codes = (weight / scales.unsqueeze(1)).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scales}, codes.float() * scales.unsqueeze(1)

    return Format(pack, modelopt_config("FP8_PER_CHANNEL_PER_TOKEN"), ignored=("o_proj",))


def fp8_per_block() -> Format:
    blocks = block_fp8(128, 128)

    def pack(weight: Tensor) -> Packed:
        tensors, values = blocks.pack(weight)
        return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale_inv"][:, None, :, None]}, values

    return Format(pack, modelopt_config("fp8_pb_wo"), ignored=("o_proj",))


MODELOPT: dict[str, Format] = {
    "FP8": replace(matrix_fp8("weight_scale", "input_scale", ()), config=modelopt_config("FP8", config_groups={})),
    "FP8_PER_CHANNEL_PER_TOKEN": fp8_per_output(),
    "FP8_PB_WO": fp8_per_block(),
}
