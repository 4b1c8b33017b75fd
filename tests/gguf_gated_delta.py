"""What the converter makes of gated delta nets, see gguf_architectures.py."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

TILED = ("qwen35", "qwen35moe")  # the first value heads of every key head, then the second, and so on
GATED_DELTA = (*TILED, "qwen3next")
FURTHER = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}


def gated_delta_keys(config: Mapping[str, Any], architecture: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    heads, layers = config["linear_num_value_heads"], config["num_hidden_layers"]
    further = 1 if any(name.startswith("mtp.") for name in tensors) else 0
    keys = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]]
        + [False] * further,
        "full_attention_interval": config.get("full_attention_interval", 4),
        "block_count": layers + further,
    }
    if architecture in TILED:
        keys["rope.dimension_sections"] = config["rope_parameters"].get("mrope_section", [11, 11, 10, 0])
    return keys | ({"nextn_predict_layers": further} if further else {})


def gated_delta_tensors(name: str, tensor: Tensor, config: Mapping[str, Any], architecture: str) -> dict[str, Tensor]:
    """The tensors that the converter makes of one, under the names that the package maps."""
    if name.startswith("mtp."):
        name = _name_in_layer(name, config["num_hidden_layers"])
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor.float() + 1
    if name.endswith(("experts.gate_up_proj",)):
        base = name.removesuffix("gate_up_proj")
        return {
            f"{base}{each}.weight": half
            for each, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True)
        }
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": tensor}
    if ".linear_attn." not in name:
        return {name: tensor}
    if name.endswith("in_proj_qkvz.weight"):
        return _by_part(name, tensor, config)
    return {_mixer_name(name): _mixer_values(name, tensor, config, architecture).contiguous()}


def further_name(name: str) -> str | None:
    """The name in a file of a tensor for multi-token prediction, which older versions of the package do not know."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm|shared_head\.norm)\.weight", name)
    return f"blk.{match[1]}.nextn.{match[2].replace('.', '_')}.weight" if match else None


def _name_in_layer(name: str, layers: int) -> str:
    parts = name.split(".")
    if parts[1] == "layers":
        return f"model.layers.{layers}.{'.'.join(parts[3:])}"
    return f"model.layers.{layers}.{FURTHER[parts[1]]}.{parts[2]}"


def _mixer_name(name: str) -> str:
    return name.replace("dt_bias", "dt_proj.bias") if name.endswith("dt_bias") else name


def _mixer_values(name: str, tensor: Tensor, config: Mapping[str, Any], architecture: str) -> Tensor:
    key_heads, value_dim = config["linear_num_key_heads"], config["linear_value_head_dim"]
    of_keys = 2 * key_heads * config["linear_key_head_dim"]
    if name.endswith(".A_log"):
        tensor = -tensor.float().exp()
    if "conv1d" in name:
        tensor = tensor.squeeze(1)
    if architecture not in TILED or name.endswith("norm.weight"):
        return tensor
    if name.endswith("out_proj.weight"):
        return tiled(tensor.t(), key_heads, value_dim).t()
    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat([tensor[:of_keys], tiled(tensor[of_keys:], key_heads, value_dim)])
    return tiled(tensor, key_heads, value_dim if "in_proj_z" in name else 1)


def tiled(tensor: Tensor, key_heads: int, size: int) -> Tensor:
    """Rows of value heads, of `size` rows each, in the order of files."""
    return tensor.reshape(key_heads, -1, size, *tensor.shape[1:]).swapaxes(0, 1).reshape(tensor.shape)


def _by_part(name: str, tensor: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """All queries, keys and values, and all gates, from those of each key head."""
    key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // key_heads * config["linear_value_head_dim"]
    parts = tensor.view(key_heads, -1, tensor.shape[1]).split([key_dim, key_dim, values, values], dim=1)
    query, key, value, gates = (part.reshape(-1, tensor.shape[1]) for part in parts)
    base = name.removesuffix("qkvz.weight")
    return {f"{base}qkv.weight": torch.cat([query, key, value]), f"{base}z.weight": gates}
