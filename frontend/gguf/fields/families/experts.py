"""The fields of config.json that mixtures of experts have besides those of other GGUF models."""

from typing import Any

from paged_serve.protocol.gguf.container import MAX_EXPERTS

from ...model import GgufModel
from .dense import granite

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # expert_gating_func


def counts(model: GgufModel, gating: int = SOFTMAX, *, norm: bool = True, may_scale: bool = False) -> tuple[int, int]:
    """The number of experts, and how many compute a token. Raises ConfigError for what is not supported.

    `norm`: the architecture divides the weights of the chosen experts by their sum.
    """
    count, used = model.whole("expert_count"), model.whole("expert_used_count")
    if not 1 <= used <= count <= MAX_EXPERTS:
        raise model.refused(f"expert_used_count={used} of expert_count={count}; at most {MAX_EXPERTS} are supported")
    if (function := model.whole("expert_gating_func", gating)) not in (0, gating):
        raise model.refused(f"expert_gating_func={function} is not supported for {model.architecture}; {gating} is")
    if model.truth("expert_weights_norm", norm) != norm:
        raise model.refused(f"expert_weights_norm={not norm} is not supported for {model.architecture}; {norm} is")
    if not may_scale and model.has("expert_weights_scale") and model.number("expert_weights_scale") not in (0.0, 1.0):
        raise model.refused(f"expert_weights_scale is not supported for {model.architecture}")
    return count, used


def rows(model: GgufModel, name: str, layer: int = 0) -> int:
    """The outputs of a projection of one layer."""
    if (tensor := model.tensor(f"blk.{layer}.{name}.weight")) is None:
        raise model.refused(f"it has no tensor blk.{layer}.{name}.weight")
    if len(tensor.shape) < 2:
        raise model.refused(f"tensor {tensor.name} has the shape {list(tensor.shape)}; it needs at least 2 dimensions")
    return tensor.shape[-2]


def expert_size(model: GgufModel, layer: int = 0) -> int:
    """The intermediate size of an expert; some files have its gate and up in one matrix."""
    if model.tensor(f"blk.{layer}.ffn_gate_up_exps.weight") is not None:
        return rows(model, "ffn_gate_up_exps", layer) // 2
    return rows(model, "ffn_gate_exps", layer)


def mixtral(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    return {"num_local_experts": count, "num_experts_per_tok": used, "sliding_window": None}


def olmoe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model, norm=False)
    return {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": False}


def _qwen_moe(model: GgufModel, *, norm: bool) -> dict[str, Any]:
    count, used = counts(model, norm=norm)
    every_layer = {"decoder_sparse_step": 1, "mlp_only_layers": []}
    sizes = {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": expert_size(model)}
    return sizes | every_layer | {"norm_topk_prob": norm}


def qwen2_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    shared = rows(model, "ffn_gate_shexp")
    return _qwen_moe(model, norm=False) | {"shared_expert_intermediate_size": shared}


def qwen3_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _qwen_moe(model, norm=True)


def dbrx(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    clip = model.number("attention.clamp_kqv", 0.0)
    return {
        "attn_config": {"clip_qkv": clip or None},
        "ffn_config": {"moe_num_experts": count, "moe_top_k": used, "ffn_hidden_size": expert_size(model)},
    }


def granitemoe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Granite MoE, with a shared expert or without."""
    count, used = counts(model)
    sizes: dict[str, Any] = {"num_local_experts": count, "num_experts_per_tok": used}
    sizes["intermediate_size"] = expert_size(model)
    if model.whole("expert_shared_feed_forward_length", 0):
        sizes |= {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
        sizes["shared_intermediate_size"] = rows(model, "ffn_gate_shexp")
    return granite(model, head_dim) | sizes


def gpt_oss(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model, SOFTMAX_OF_CHOSEN)
    size, window = expert_size(model), model.whole("attention.sliding_window")
    sizes = {"num_local_experts": count, "num_experts_per_tok": used, "intermediate_size": size}
    return sizes | {"sliding_window": window, "attention_bias": True}
