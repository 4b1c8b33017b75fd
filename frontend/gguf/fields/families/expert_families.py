"""The fields of config.json of models whose experts are chosen by sigmoids, or that have shared experts."""

from typing import Any

from ...model import GgufModel
from ..layers import FULL, layer_types
from .dense import llama
from .experts import SIGMOID, SOFTMAX, counts, expert_size, rows

LLAMA4_CHUNK = 8192  # as in llama.cpp: its files do not say it, nor where queries grow with the position
WITHOUT_HEAD_NORMS = 128  # experts of Llama 4 Maverick, by which llama.cpp recognises it


def _layers_with_experts(model: GgufModel) -> list[bool]:
    return [model.tensor(f"blk.{layer}.ffn_gate_inp.weight") is not None for layer in range(model.num_layers())]


def first_with_experts(model: GgufModel) -> int:
    """Raises ConfigError if there is none."""
    if True not in (found := _layers_with_experts(model)):
        raise model.refused("none of its layers has a tensor ffn_gate_inp.weight")
    return found.index(True)


def mlp_layer_types(model: GgufModel) -> list[str]:
    return ["sparse" if has else "dense" for has in _layers_with_experts(model)]


def sigmoid_counts(model: GgufModel, *, norm: bool = False) -> dict[str, Any]:
    """Of GLM-4.5's kind of experts, in groups; some files do not say that sigmoids choose them.

    `norm`: whether the weights are divided by their sum, unless the file says it.
    """
    norm = model.truth("expert_weights_norm", norm)
    count, used = counts(model, SIGMOID, norm=norm, may_scale=True)
    groups = model.whole("expert_group_count", 0) or 1
    return {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": expert_size(model, first_with_experts(model)),
        "n_group": groups,
        "topk_group": model.whole("expert_group_used_count", 0) or groups,
        "norm_topk_prob": norm,
        "routed_scaling_factor": model.number("expert_weights_scale", 0.0) or 1.0,
    }


def minimax_m2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model, SIGMOID)
    sizes = {"num_local_experts": count, "num_experts_per_tok": used, "intermediate_size": expert_size(model)}
    return sizes | {"use_qk_norm": True}


def ernie4_5(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"use_bias": model.tensor("blk.0.attn_q.bias") is not None}


def ernie4_5_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    have, first = _layers_with_experts(model), first_with_experts(model)
    last = len(have) - 1 - have[::-1].index(True)
    step = model.whole("interleave_moe_layer_step", 1)
    start = model.whole("leading_dense_block_count", first)
    if step < 1 or have != [start <= at <= last and (at + 1) % step == 0 for at in range(len(have))]:
        raise model.refused(f"interleave_moe_layer_step={step} does not give the layers with tensors of experts")
    return {
        "moe_num_experts": count,
        "moe_k": used,
        "moe_intermediate_size": expert_size(model, first),
        "moe_num_shared_experts": model.whole("expert_shared_count", 0),
        "moe_layer_start_index": start,
        "moe_layer_end_index": last,
        "moe_layer_interval": step,
        "use_bias": False,
    }


def hunyuan(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Files have the stretched base of the rotation; a whole alpha, if it is one, gives it back exactly."""
    found = llama(model, head_dim)
    if alpha := _alpha(model.number("rope.freq_base", 10000.0), head_dim):
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": alpha, "factor": 1.0}
        return found | {"rope_scaling": rope, "rope_theta": 10000.0}
    return found


def _alpha(base: float, head_dim: int) -> float | None:
    if head_dim < 4 or not 10000.0 < base < 1e12:
        return None
    exponent = head_dim / (head_dim - 2)
    alpha = round((base / 10000.0) ** (1 / exponent))
    exact = 10000.0 * alpha**exponent
    return float(alpha) if alpha > 1 and abs(exact - base) <= 1e-6 * base else None


def hunyuan_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    size, shared = expert_size(model), rows(model, "ffn_gate_shexp")
    if size != shared:
        raise model.refused(f"experts of {size} elements beside a shared one of {shared} are not supported")
    sizes = {"num_experts": count, "moe_topk": used, "intermediate_size": size, "num_shared_expert": 1}
    return hunyuan(model, head_dim) | sizes


def llama4(model: GgufModel, head_dim: int) -> dict[str, Any]:
    layers = model.num_layers()
    found: dict[str, Any] = {"attention_chunk_size": LLAMA4_CHUNK, "no_rope_layer_interval": 4, "moe_layers": []}
    if not model.whole("attention.sliding_window", LLAMA4_CHUNK):
        found = {"attention_chunk_size": None, "layer_types": [FULL] * layers, "no_rope_layers": [1] * layers}
    if count := model.whole("expert_count", 0):
        _, used = counts(model, SIGMOID, norm=False)
        chosen = [layer for layer, has in enumerate(_layers_with_experts(model)) if has]
        found |= {"num_local_experts": count, "num_experts_per_tok": used, "moe_layers": chosen}
    dense = next((layer for layer in range(layers) if model.tensor(f"blk.{layer}.ffn_gate.weight")), None)
    of_dense = rows(model, "ffn_gate", dense) if dense is not None else model.whole("feed_forward_length")
    size = expert_size(model, found["moe_layers"][0]) if found.get("moe_layers") else of_dense
    sizes = {"intermediate_size": size, "intermediate_size_mlp": of_dense}
    return llama(model, head_dim) | found | sizes | {"use_qk_norm": count != WITHOUT_HEAD_NORMS}


def cohere2_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    gating = model.whole("expert_gating_func", 0) or SIGMOID
    norm = model.truth("expert_weights_norm", False)
    count, used = counts(model, gating, norm=norm)
    if gating not in (SIGMOID, SOFTMAX):
        raise model.refused(f"expert_gating_func={gating} is not supported for cohere2moe; 1 and 2 are")
    epsilon = {}
    if not model.has("attention.layer_norm_epsilon"):
        epsilon = {"rms_norm_eps": model.number("attention.layer_norm_rms_epsilon")}
    return epsilon | {
        "logit_scale": model.number("logit_scale"),
        "sliding_window": model.whole("attention.sliding_window"),
        "layer_types": layer_types(model, 4),
        "num_experts": count,
        "num_experts_per_tok": used,
        "norm_topk_prob": norm,
        "expert_selection_fn": "sigmoid" if gating == SIGMOID else "softmax",
        "first_k_dense_replace": model.whole("leading_dense_block_count", 0),
        "prefix_dense_intermediate_size": model.whole("feed_forward_length"),
        "intermediate_size": expert_size(model, first_with_experts(model)),
        "num_shared_experts": model.whole("expert_shared_count", 0),
    }


def dots1(model: GgufModel, head_dim: int) -> dict[str, Any]:
    found = sigmoid_counts(model)
    return found | {
        "n_routed_experts": found.pop("num_experts"),
        "n_shared_experts": model.whole("expert_shared_count", 0),
        "first_k_dense_replace": model.whole("leading_dense_block_count", 0),
        "sliding_window": None,
    }


def deepseek(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Files say whether the weights of the experts are divided by their sum."""
    norm = model.truth("expert_weights_norm", False)
    count, used = counts(model, norm=norm)
    return {
        "num_experts_per_tok": used,
        "n_routed_experts": count,
        "n_shared_experts": model.whole("expert_shared_count", 0),
        "moe_intermediate_size": expert_size(model, first_with_experts(model)),
        "norm_topk_prob": norm,
        "first_k_dense_replace": model.whole("leading_dense_block_count", 0),
    }


def bailing_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    found = deepseek(model, head_dim)
    return found | {"num_experts": found.pop("n_routed_experts"), "num_shared_experts": found.pop("n_shared_experts")}


def bailing_moe2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return sigmoid_counts(model) | {
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": rows(model, "ffn_gate_shexp", first_with_experts(model)),
        "first_k_dense_replace": model.whole("leading_dense_block_count", 0),
        "use_qkv_bias": model.tensor("blk.0.attn_qkv.bias") is not None,
        "use_qk_norm": model.tensor("blk.0.attn_q_norm.weight") is not None,
    }


def ungrouped_counts(model: GgufModel) -> dict[str, Any]:
    """The same, of families without groups whose weights are divided by their sum. Raises ConfigError for others."""
    found = sigmoid_counts(model, norm=True)
    if found["n_group"] != 1 or not found["norm_topk_prob"]:
        name = model.architecture
        raise model.refused(f"groups of experts, or expert_weights_norm=False, are not supported for {name}")
    return found


def afmoe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Embeddings are always multiplied, as in llama.cpp."""
    found = ungrouped_counts(model)
    window = model.whole("attention.sliding_window", 0)
    kinds = layer_types(model, 4) if window else [FULL] * model.num_layers()
    return {
        **{name: found[name] for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")},
        "route_scale": found["routed_scaling_factor"],
        "num_shared_experts": model.whole("expert_shared_count", 0),
        "num_dense_layers": model.whole("leading_dense_block_count", 0),
        "sliding_window": window or None,
        "layer_types": kinds,
        "mup_enabled": True,
    }


def exaone_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {
        **sigmoid_counts(model),
        "num_shared_experts": model.whole("expert_shared_count", 0),
        "is_moe_layer": _layers_with_experts(model),
        "sliding_window": model.whole("attention.sliding_window"),
        "layer_types": layer_types(model, 4),
    }


def phimoe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    window = model.whole("attention.sliding_window", 0)
    return {
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "intermediate_size": expert_size(model),
        "attention_bias": model.tensor("blk.0.attn_q.bias") is not None,
        "lm_head_bias": model.tensor("output.bias") is not None,
        "sliding_window": window or None,
    }
