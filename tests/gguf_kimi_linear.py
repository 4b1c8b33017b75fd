"""What the converter makes of Kimi Linear, see gguf_architectures.py."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

KIMI_LINEAR = "kimi-linear"
SIGMOID = 2
KEYS = {  # in config.json, and in a file
    "linear_head_dim": "kda.head_dim",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "qk_head_dim": "attention.key_length_mla",
    "v_head_dim": "attention.value_length_mla",
    "num_experts_per_token": "expert_used_count",
    "num_expert_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "num_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "model_max_length": "context_length",
}


def kimi_linear_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[name] for name, key in KEYS.items()} | {
        "attention.head_count_kv": [int(kind == "full_attention") for kind in config["layer_types"]],
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_gating_func": SIGMOID,
    }


def kimi_linear_tensor(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """The tensor under the name that the package maps; transformers saves dense layers under that of experts."""
    if name.endswith(".A_log"):
        return name, -tensor.float().exp()
    if name.endswith("conv1d.weight"):
        return name, tensor.squeeze(1)[None, :, None]
    if ".experts." not in name and ".shared_experts." not in name and name.endswith("_proj.weight"):
        name = name.replace("block_sparse_moe", "mlp")
    return name.replace("dt_bias", "dt_proj.bias"), tensor
