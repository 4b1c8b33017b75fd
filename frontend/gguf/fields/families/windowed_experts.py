"""The fields of config.json of mixtures of experts whose layers with windows have heads or a rotation of their own."""

from typing import Any

from ...model import GgufModel
from ..layers import FULL, SLIDING, feed_forward_length, layer_types
from ..rope import ropes_of_kinds
from .dense import llama, multipliers
from .expert_families import first_with_experts, mlp_layer_types, sigmoid_counts, ungrouped_counts
from .experts import counts, expert_size, rows


def hy_v3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    found, first = ungrouped_counts(model), first_with_experts(model)
    shared = rows(model, "ffn_gate_shexp", first)
    if shared % found["moe_intermediate_size"]:
        raise model.refused(f"shared experts of {shared} elements are no whole number of experts")
    return {
        **{name: found[name] for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")},
        "num_shared_experts": shared // found["moe_intermediate_size"],
        "router_scaling_factor": found["routed_scaling_factor"],
        "mlp_layer_types": mlp_layer_types(model),
        "attention_bias": llama(model, head_dim)["attention_bias"],
    }


def laguna(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Files without kinds of layers have full attention in the first of each four; gates are of heads or elements."""
    found, first = ungrouped_counts(model), first_with_experts(model)
    window = model.whole("attention.sliding_window", 0)
    kinds = layer_types(model, 4, first_is_full=True) if window else [FULL] * model.num_layers()
    heads = model.heads_of_layers()
    return {
        **{name: found[name] for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")},
        **ropes_of_kinds(model, head_dim, kinds),
        "shared_expert_intermediate_size": rows(model, "ffn_gate_shexp", first),
        "moe_routed_scaling_factor": found["routed_scaling_factor"],
        "mlp_layer_types": mlp_layer_types(model),
        "sliding_window": window or None,
        "num_attention_heads_per_layer": heads,
        "gating": "per-head" if rows(model, "attn_gate") == heads[0] else "per-element",
        "attention_bias": llama(model, head_dim)["attention_bias"],
    }


def mellum(model: GgufModel, head_dim: int) -> dict[str, Any]:
    count, used = counts(model)
    window = model.whole("attention.sliding_window", 0)
    kinds = layer_types(model, 4) if window else [FULL] * model.num_layers()
    return {
        **ropes_of_kinds(model, head_dim, kinds),
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": expert_size(model, first_with_experts(model)),
        "norm_topk_prob": True,
        "mlp_layer_types": mlp_layer_types(model),
        "sliding_window": window or None,
        "attention_bias": llama(model, head_dim)["attention_bias"],
    }


def granite_swa(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Granite with windows and sinks, dense or with experts; layers without rotation have the theta 0."""
    found = llama(model, head_dim) | multipliers(model, head_dim)
    found |= {"layer_types": layer_types(model, 4), "sliding_window": model.whole("attention.sliding_window")}
    if model.has("attention.rope_pattern"):
        theta = model.number("rope.freq_base", 10000.0)
        have = model.numbers("attention.rope_pattern")
        found["layer_rope_theta"] = [theta if has else 0 for has in have[: model.num_layers()]]
    if model.whole("expert_count", 0):
        count, used = counts(model)
        found |= {"architectures": ["GraniteMoeSWAForCausalLM"], "model_type": "granitemoe_swa"}
        found |= {"num_local_experts": count, "num_experts_per_tok": used, "intermediate_size": expert_size(model)}
        if model.whole("expert_shared_feed_forward_length", 0):
            found["shared_intermediate_size"] = rows(model, "ffn_up_shexp") // 2  # gate and up
    return found


def mimo2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The window is that of published files, which do not count the token itself."""
    kinds, window = layer_types(model, 6), model.whole("attention.sliding_window")
    of_kind = {FULL: set[int](), SLIDING: set[int]()}
    for kind, count in zip(kinds, model.kv_heads(), strict=True):
        of_kind[kind].add(count)
    if not all(len(counts) <= 1 for counts in of_kind.values()):
        raise model.refused("its layers of one kind have different numbers of KV heads")
    full, local = (max(of_kind[kind] or of_kind[other]) for kind, other in ((FULL, SLIDING), (SLIDING, FULL)))
    return {
        **sigmoid_counts(model, norm=True),
        **ropes_of_kinds(model, head_dim, kinds),
        "intermediate_size": feed_forward_length(model),
        "num_key_value_heads": full,
        "swa_num_key_value_heads": local,
        "v_head_dim": model.whole("attention.value_length"),
        "attention_value_scale": model.number("attention.value_scale", 1.0),
        "sliding_window_size": window,
        "mlp_layer_types": mlp_layer_types(model),
        "attention_bias": llama(model, head_dim)["attention_bias"],
    }
