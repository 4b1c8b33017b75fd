"""The fields of config.json that models with gated delta nets have besides those of all GGUF models."""

from typing import Any

from ..model import GgufModel
from .experts import counts, expert_size, rows
from .layers import FULL

LINEAR = "linear_attention"


def qwen35(model: GgufModel, head_dim: int) -> dict[str, Any]:
    heads, inner = model.whole("ssm.time_step_rank"), model.whole("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise model.refused(f"ssm.time_step_rank={heads} heads do not divide the ssm.inner_size={inner}")
    return {
        "layer_types": _kinds(model),
        "linear_conv_kernel_dim": model.whole("ssm.conv_kernel"),
        "linear_key_head_dim": model.whole("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": model.whole("ssm.group_count"),
        "linear_num_value_heads": heads,
    }


def qwen_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Qwen3-Next, and Qwen3.5 with experts."""
    count, used = counts(model)
    sizes = {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": expert_size(model)}
    sizes["shared_expert_intermediate_size"] = rows(model, "ffn_gate_shexp")
    return qwen35(model, head_dim) | sizes | {"norm_topk_prob": True}


def _kinds(model: GgufModel) -> list[str]:
    """Of each layer, by a list or a period in the file."""
    layers, key = model.num_layers(), "attention.recurrent_layers"
    period = model.whole("full_attention_interval", 4)
    if isinstance(model.metadata.values.get(model.key(key)), list):
        are_linear = [bool(each) for each in model.numbers(key)]
        if len(are_linear) < layers:
            raise model.refused(f"{key} has {len(are_linear)} entries for {layers} layers")
    elif period < 1:
        raise model.refused(f"full_attention_interval={period} must be at least 1")
    else:
        are_linear = [(layer + 1) % period != 0 for layer in range(layers)]
    return [LINEAR if each else FULL for each in are_linear[:layers]]
