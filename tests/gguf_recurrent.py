"""What the converter makes of recurrent layers, see gguf_architectures.py."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

ATTENTION = ("attention", "full_attention")


def recurrent_keys(config: Mapping[str, Any], architecture: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The keys of one architecture with recurrent layers, besides those of all."""
    layers = config["num_hidden_layers"]
    if architecture == "jamba":
        period, offset = config["attn_layer_period"], config["attn_layer_offset"]
        attend = [layer % period == offset for layer in range(layers)]
    else:
        attend = [kind in ATTENTION for kind in config.get("layer_types") or ["mamba"] * layers]
    heads_of_layers = [config.get("num_key_value_heads", 0) * each for each in attend]
    keys: dict[str, Any] = {"attention.head_count_kv": heads_of_layers if any(attend) else 0}
    if architecture == "lfm2":
        size = len(tensors["model.layers.0.feed_forward.w1.weight"])
        return keys | {"shortconv.l_cache": config["conv_L_cache"], "feed_forward_length": size}
    inner = config.get("mamba_expand", config.get("expand", 2)) * config["hidden_size"]
    heads = config.get("mamba_n_heads") or config.get("num_heads")
    keys |= {
        "ssm.conv_kernel": config.get("mamba_d_conv") or config["conv_kernel"],
        "ssm.inner_size": inner,
        "ssm.state_size": config.get("mamba_d_state") or config["state_size"],
        "ssm.time_step_rank": heads or config.get("mamba_dt_rank") or config["time_step_rank"],
    }
    if heads:
        keys["ssm.group_count"] = config.get("mamba_n_groups") or config["n_groups"]
    if architecture == "granitehybrid":
        keys["rope.scaling.finetuned"] = config.get("position_embedding_type") == "rope"
    return keys


def recurrent_values(name: str, tensor: Tensor, config: Mapping[str, Any]) -> tuple[str, Tensor]:
    """The tensor's name as the package maps it, and its values."""
    groups = config.get("mamba_n_groups") or config.get("n_groups")  # only Mamba 2 has them
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        return name, tensor.squeeze(1)
    if name.endswith(".A_log"):
        rates = -tensor.float().exp()
        return name, rates.unsqueeze(1) if groups else rates
    if name.endswith(".D"):
        return name, tensor.float().unsqueeze(1) if groups else tensor.float()
    if name.endswith(".dt_bias"):
        return f"{name.removesuffix('dt_bias')}dt_proj.bias", tensor
    if groups and name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return name, tensor.view(groups, -1)
    return name, tensor
