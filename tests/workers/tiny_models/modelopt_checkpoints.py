"""The formats of NVIDIA's ModelOpt, and those of compressed-tensors in 4-bit floats, in the layouts of their files.

The packers of 4-bit floats were compared once with the tools themselves, bit for bit, codes, scales and values:
compressed-tensors 0.20.1 and nvidia-modelopt 0.47.0.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paged_serve.workers.checkpoint.blocks.dequantize import E2M1_TWICE

from .quantized_checkpoints import Format, Packed, block_fp8, compressed_tensors_config, matrix_fp8

E2M1 = torch.tensor(E2M1_TWICE) / 2


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


def e2m1_codes(values: Tensor) -> Tensor:
    """The code [..., n] uint8 of the nearest number of each of the `values`."""
    codes = (values.unsqueeze(-1) - E2M1).abs().argmin(-1)
    return torch.where(values.signbit() & (codes == 0), 8, codes).byte()


def pairs(codes: Tensor) -> Tensor:
    """Codes [out, in] in bytes, the first of two in the low half."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def nvfp4_parts(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in], scales [out, groups] in e4m3, and that of the matrix, by which they are multiplied."""
    groups, of_matrix = weight.unflatten(1, (-1, 16)), weight.abs().max() / (6 * 448)
    scales = (groups.abs().amax(2) / 6 / of_matrix).to(torch.float8_e4m3fn)
    whole = (scales.float() * of_matrix).clamp(min=1e-30).unsqueeze(2)
    return e2m1_codes(groups / whole).flatten(1), scales, of_matrix


def values_of(codes: Tensor, scales: Tensor) -> Tensor:
    """The dequantized weights; `scales` [out, groups] float32."""
    return (E2M1[codes.int()].unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(2)).flatten(1)


def modelopt_nvfp4() -> Format:
    def pack(weight: Tensor) -> Packed:
        codes, scales, of_matrix = nvfp4_parts(weight)
        tensors = {"weight": pairs(codes), "weight_scale": scales, "weight_scale_2": of_matrix}
        return tensors | {"input_scale": torch.tensor(0.02)}, values_of(codes, scales.float() * of_matrix)

    return Format(pack, modelopt_config("NVFP4", group_size=16), ignored=("o_proj",))


def modelopt_mixed() -> Format:
    """Matrices of as many inputs as outputs in fp8, others in NVFP4."""
    fp8, nvfp4 = MODELOPT["FP8"], modelopt_nvfp4()
    layers = {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    return Format(
        lambda weight: (fp8 if weight.shape[0] == weight.shape[1] else nvfp4).pack(weight),
        modelopt_config("MIXED_PRECISION", quantized_layers=layers),
        ignored=("o_proj",),
    )


def compressed_nvfp4(*, has_inputs: bool = True) -> Format:
    """By llm-compressor; `has_inputs`: with settings and a scale of activations."""

    def pack(weight: Tensor) -> Packed:
        codes, scales, of_matrix = nvfp4_parts(weight)
        divisor = (1 / of_matrix).view(1)
        tensors = {"weight_packed": pairs(codes), "weight_scale": scales, "weight_global_scale": divisor}
        if has_inputs:
            tensors["input_global_scale"] = torch.tensor([50.0])
        return tensors, values_of(codes, scales.float() / divisor)

    how = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    inputs = how | {"dynamic": "local"} if has_inputs else None
    config = compressed_tensors_config("nvfp4-pack-quantized", how | {"dynamic": False}, inputs)
    return Format(pack, config, ignored=("o_proj",))


def compressed_mxfp4() -> Format:
    def pack(weight: Tensor) -> Packed:
        groups = weight.unflatten(1, (-1, 32))
        exponents = (groups.abs().amax(2) / 6).log2().ceil().clamp(min=-60).int()
        scales = torch.ldexp(torch.ones(exponents.shape), exponents)
        codes = e2m1_codes(groups / scales.unsqueeze(2)).flatten(1)
        return {"weight_packed": pairs(codes), "weight_scale": (exponents + 127).byte()}, values_of(codes, scales)

    how = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
    return Format(pack, compressed_tensors_config("mxfp4-pack-quantized", how, None), ignored=("o_proj",))


MODELOPT: dict[str, Format] = {
    "FP8": replace(matrix_fp8("weight_scale", "input_scale", ()), config=modelopt_config("FP8", config_groups={})),
    "FP8_PER_CHANNEL_PER_TOKEN": fp8_per_output(),
    "FP8_PB_WO": fp8_per_block(),
}
FP4: dict[str, Format] = {
    "NVFP4": modelopt_nvfp4(),
    "MIXED_PRECISION": modelopt_mixed(),
    "ct-nvfp4": compressed_nvfp4(),
    "ct-nvfp4a16": compressed_nvfp4(has_inputs=False),
    "ct-mxfp4": compressed_mxfp4(),
}
