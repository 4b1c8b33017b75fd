"""What the converter makes of further mixtures of experts, see gguf_architectures.py."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

SIGMOID, SOFTMAX = 2, 1
SLIDING = "sliding_attention"
COUNTS = {  # in config.json, and in a file
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "num_shared_experts": "expert_shared_count",
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "num_dense_layers": "leading_dense_block_count",
    "route_scale": "expert_weights_scale",
    "moe_topk": "expert_used_count",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "logit_scale": "logit_scale",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
OWN = ("minimax-m2", "ernie4_5", "ernie4_5-moe", "hunyuan-dense", "hunyuan-moe", "llama4", "cohere2moe", "dots1")
OWN += ("afmoe", "exaone-moe", "phimoe", "minicpm3", "nemotron_h_moe")
WITH_WINDOWS = ("cohere2moe", "afmoe", "exaone-moe")


def family_keys(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The keys of one of OWN, besides those of all; None: the file has none."""
    keys = {key: config[name] for name, key in COUNTS.items() if config.get(name) is not None}
    size = config.get("intermediate_size")
    if architecture in WITH_WINDOWS:
        keys["attention.sliding_window"] = config["sliding_window"]
        if architecture != "afmoe":
            keys["attention.sliding_window_pattern"] = [kind == SLIDING for kind in config["layer_types"]]
    match architecture:
        case "minimax-m2":
            keys["expert_feed_forward_length"] = size
        case "ernie4_5-moe":
            keys["expert_shared_feed_forward_length"] = size // config["num_key_value_heads"]
        case "hunyuan-dense":
            keys |= _stretched(config["rope_parameters"], config["head_dim"])
        case "hunyuan-moe":
            keys |= {"expert_feed_forward_length": size, "expert_shared_feed_forward_length": size}
            keys["expert_shared_count"] = 1
        case "llama4":
            keys |= {"expert_feed_forward_length": size, "feed_forward_length": config["intermediate_size_mlp"]}
            keys["interleave_moe_layer_step"] = config["interleave_moe_layer_step"]
        case "cohere2moe":
            keys |= {"expert_feed_forward_length": size, "expert_gating_func": SIGMOID}
            keys["feed_forward_length"] = config["prefix_dense_intermediate_size"]
            keys["expert_shared_feed_forward_length"] = size * config["num_shared_experts"]
            keys["leading_dense_block_count"] = config["mlp_layer_types"].count("dense")
        case "exaone-moe":
            shared = config["moe_intermediate_size"] * config["num_shared_experts"]
            keys |= {"expert_shared_feed_forward_length": shared, "nextn_predict_layers": 0}
        case "minicpm3":
            rotated = config["qk_rope_head_dim"]
            keys |= {"attention.key_length": config["qk_nope_head_dim"] + rotated, "rope.dimension_count": rotated}
            keys |= dict.fromkeys(("rope.freq_base", "attention.value_length"))
        case "nemotron_h_moe":
            keys |= _nemotron(config)
    return keys


def _stretched(rope: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    if rope["rope_type"] != "dynamic":
        return {}
    base = rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2))
    return {"rope.freq_base": base, "rope.scaling.type": "none", "rope.scaling.factor": 1.0}


def _nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds, heads = config["layers_block_type"], config["mamba_num_heads"]
    lengths = {"moe": config["moe_intermediate_size"], "mlp": config["intermediate_size"]}
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds],
        "feed_forward_length": [lengths.get(kind, 0) for kind in kinds],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.layer_norm_rms_epsilon": None,
        "block_count": len(kinds),
        "rope.scaling.finetuned": False,
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["mamba_head_dim"] * heads,
        "ssm.time_step_rank": heads,
    }


def family_tensors(name: str, tensor: Tensor, architecture: str) -> dict[str, Tensor]:
    """The tensors that the converter makes of one, under the names that the package maps."""
    if name.endswith("experts.gate_up_proj"):  # of Llama 4: [experts, in, out]
        base = name.removesuffix("gate_up_proj")
        halves = zip(("gate_proj", "up_proj"), tensor.transpose(1, 2).chunk(2, 1), strict=True)
        return {f"{base}{each}.weight": half.contiguous() for each, half in halves}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": tensor.transpose(1, 2).contiguous()}
    if name.endswith("mlp.expert_bias"):
        return {f"{name}.bias": tensor}
    return {name: tensor}
