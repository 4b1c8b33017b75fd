"""What the converter makes of DBRX, see gguf_architectures.py."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

DBRX = "dbrx"
EXPERTS = ".experts.mlp."


def dbrx_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields under the names that most architectures have."""
    attention, experts = config["attn_config"], config["ffn_config"]
    return {
        "num_attention_heads": config["n_heads"],
        "num_key_value_heads": attention["kv_n_heads"],
        "hidden_size": config["d_model"],
        "intermediate_size": experts["ffn_hidden_size"],
        "num_hidden_layers": config["n_layers"],
        "max_position_embeddings": config["max_seq_len"],
        "num_experts": experts["moe_num_experts"],
        "num_experts_per_tok": experts["moe_top_k"],
        "clip_qkv": attention["clip_qkv"],
    }


def dbrx_tensor(name: str, tensor: Tensor, config: Mapping[str, Any]) -> tuple[str, Tensor]:
    """The tensor with a dimension for experts, whose matrices are [out, in]."""
    if EXPERTS not in name:
        return name, tensor
    by_expert = tensor.view(config["num_experts"], config["intermediate_size"], -1)
    return f"{name}.weight", by_expert.transpose(1, 2).contiguous() if name.endswith("w2") else by_expert
