"""The fields of config.json that mixtures of experts have besides those of other GGUF models."""

from typing import Any

from paged_serve.protocol.gguf.container import MAX_EXPERTS

from .model import GgufModel

SOFTMAX, SOFTMAX_OF_CHOSEN = 1, 3  # expert_gating_func


def _counts(model: GgufModel, gating: int = SOFTMAX) -> tuple[int, int]:
    """The number of experts, and how many compute a token. Raises ConfigError for what is not supported."""
    count, used = model.whole("expert_count"), model.whole("expert_used_count")
    if not 1 <= used <= count <= MAX_EXPERTS:
        raise model.refused(f"expert_used_count={used} of expert_count={count}; at most {MAX_EXPERTS} are supported")
    if (function := model.whole("expert_gating_func", gating)) not in (0, gating):
        raise model.refused(f"expert_gating_func={function} is not supported for {model.architecture}; {gating} is")
    if model.has("expert_weights_scale") and model.number("expert_weights_scale") not in (0.0, 1.0):
        raise model.refused(f"expert_weights_scale is not supported for {model.architecture}")
    return count, used


def _rows(model: GgufModel, name: str) -> int:
    """The outputs of a projection of the first layer."""
    if (tensor := model.tensor(f"blk.0.{name}.weight")) is None:
        raise model.refused(f"it has no tensor blk.0.{name}.weight")
    if len(tensor.shape) < 2:
        raise model.refused(f"tensor {tensor.name} has the shape {list(tensor.shape)}; it needs at least 2 dimensions")
    return tensor.shape[-2]


def mixtral(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = _counts(model)
    return {"num_local_experts": count, "num_experts_per_tok": used, "sliding_window": None}


def olmoe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = _counts(model)
    return {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": False}


def _qwen_moe(model: GgufModel) -> dict[str, Any]:
    count, used = _counts(model)
    every_layer = {"decoder_sparse_step": 1, "mlp_only_layers": []}
    sizes = {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": _rows(model, "ffn_gate_exps")}
    return sizes | every_layer


def qwen2_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    shared = _rows(model, "ffn_gate_shexp")
    return _qwen_moe(model) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def qwen3_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _qwen_moe(model) | {"norm_topk_prob": True}


def gpt_oss(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = _counts(model, SOFTMAX_OF_CHOSEN)
    size, window = _rows(model, "ffn_gate_exps"), model.whole("attention.sliding_window")
    sizes = {"num_local_experts": count, "num_experts_per_tok": used, "intermediate_size": size}
    return sizes | {"sliding_window": window, "attention_bias": True}
