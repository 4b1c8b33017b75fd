"""The fields of config.json that DeepSeek's latent attention has, and experts that sigmoids choose."""

from typing import Any

from ...model import GgufModel
from ..layers import FULL
from .experts import SIGMOID, SOFTMAX, counts, expert_size

MLA = "attention.{}_length_mla"  # of newer files; their key_length and value_length are those of the shared vector
CONTEXT_OF_GLM52 = 1 << 20  # tokens

KIMI_NAMES = {
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "n_group": "num_expert_group",
    "norm_topk_prob": "moe_renormalize",
}


def glm4_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has = {name: model.tensor(f"blk.0.{name}") is not None for name in ("attn_q.bias", "attn_q_norm.weight")}
    own = {"attention_bias": has["attn_q.bias"], "use_qk_norm": has["attn_q_norm.weight"]}
    return own | _experts(model, SIGMOID)


def deepseek2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """V2 or V3, by how experts are chosen; without experts Youtu-LLM."""
    if not model.whole("expert_count", 0):
        return _latent_sizes(model) | {"architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    has_correction = model.tensor(f"blk.{model.whole('leading_dense_block_count', 0)}.exp_probs_b.bias") is not None
    gating = model.whole("expert_gating_func", 0) or (SIGMOID if has_correction else SOFTMAX)
    fields = _latent_sizes(model) | _experts(model, gating) | {"rope_interleave": True}
    if gating == SIGMOID:
        return fields | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    return fields | {"topk_method": "group_limited_greedy" if fields["n_group"] > 1 else "greedy"}


def deepseek32(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _latent_sizes(model) | _experts(model, SIGMOID) | _indexer(model)


def glm_dsa(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Files of GLM-5.2 that do not say which layers have indexers are told by their context, as in llama.cpp."""
    layers = model.num_layers()
    if model.has("attention.indexer.types"):
        have = [bool(each) for each in model.numbers("attention.indexer.types")][:layers]
        if len(have) < layers:
            raise model.refused(f"attention.indexer.types has {len(have)} entries for {layers} layers")
    else:
        every = 4 if model.whole("context_length") >= CONTEXT_OF_GLM52 else 1
        have = [layer < 2 or (layer - 2) % every == 0 for layer in range(layers)]
    kinds = ["full" if has else "shared" for has in have]
    return _latent_sizes(model) | _experts(model, SIGMOID) | _indexer(model) | {"indexer_types": kinds}


def _indexer(model: GgufModel) -> dict[str, int]:
    """The sizes of sparse attention's indexers."""
    return {
        "index_n_heads": model.whole("attention.indexer.head_count"),
        "index_head_dim": model.whole("attention.indexer.key_length"),
        "index_topk": model.whole("attention.indexer.top_k"),
    }


def mistral4(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _latent_sizes(model) | _experts(model, SOFTMAX) | {"rope_interleave": True}


def kimi_linear(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Layers without KV heads are Kimi delta attention. Files do not say that weights are divided by their sum."""
    kinds = [bool(heads) for heads in model.kv_heads()]
    linear = {
        "full_attn_layers": [layer for layer, has_heads in enumerate(kinds, 1) if has_heads],
        "kda_layers": [layer for layer, has_heads in enumerate(kinds, 1) if not has_heads],
        "head_dim": model.whole("kda.head_dim"),
        "num_heads": model.whole("attention.head_count"),
        "short_conv_kernel_size": model.whole("ssm.conv_kernel"),
    }
    experts = {KIMI_NAMES.get(name, name): value for name, value in _experts(model, SIGMOID, norm=True).items()}
    return _latent_sizes(model) | experts | {"linear_attn_config": linear}


def bailing_moe3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Layers without KV heads are Kimi delta attention, as in `kimi_linear`."""
    experts = _experts(model, SIGMOID)
    return {
        **_latent_sizes(model),
        **{KIMI_NAMES[name] if name == "n_routed_experts" else name: value for name, value in experts.items()},
        "layer_types": [FULL if heads else "linear_attention" for heads in model.kv_heads()],
        "linear_num_heads": model.whole("attention.head_count"),
        "linear_head_dim": model.whole("kda.head_dim"),
        "linear_conv_kernel_dim": model.whole("ssm.conv_kernel"),
        "kda_safe_gate": model.truth("kda.safe_gate", True),
        "kda_lower_bound": model.number("kda.gate_lower_bound"),
        "moe_shared_expert_intermediate_size": model.whole("expert_shared_feed_forward_length", 0) or None,
        "expert_swiglu_limit_list": model.numbers("swiglu_clamp_exp", []),
        "share_expert_swiglu_limit_list": model.numbers("swiglu_clamp_shexp", []),
    }


def _experts(model: GgufModel, gating: int, *, norm: bool = False) -> dict[str, Any]:
    """`norm`: whether the weights are divided by their sum, unless the file says it."""
    dense = model.whole("leading_dense_block_count", 0)
    # The weights may be scaled and divided by their sum or not, which `counts` refuses by default.
    norm = model.truth("expert_weights_norm", norm)
    count, used = counts(model, gating, norm=norm, may_scale=True)
    groups = model.whole("expert_group_count", 0) or 1
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": expert_size(model, dense),
        "first_k_dense_replace": dense,
        "n_shared_experts": model.whole("expert_shared_count", 0),
        "n_group": groups,
        "topk_group": model.whole("expert_group_used_count", 0) or groups,
        "norm_topk_prob": norm,
        "routed_scaling_factor": model.number("expert_weights_scale", 0.0) or 1.0,
    }


def _latent_sizes(model: GgufModel) -> dict[str, Any]:
    rotated = model.whole("rope.dimension_count")
    lengths = {
        each: model.whole(MLA.format(each), 0) or model.whole(f"attention.{each}_length") for each in ("key", "value")
    }
    rank = model.whole("attention.q_lora_rank", 0)
    return {
        "q_lora_rank": rank or None,
        "kv_lora_rank": model.whole("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": lengths["key"] - rotated,
        "v_head_dim": lengths["value"],
    }


def minicpm3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Files do not say the factors of the published model, nor the size of values, which follows from the heads'."""
    rotated, heads = model.whole("rope.dimension_count"), model.whole("attention.head_count")
    hidden_size, scalings = (
        model.whole("embedding_length"),
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    )
    return scalings | {
        "q_lora_rank": model.whole("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": model.whole("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": model.whole("attention.key_length") - rotated,
        "v_head_dim": hidden_size // heads,
    }
