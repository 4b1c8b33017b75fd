"""The fields of config.json that dense decoders have besides those of all GGUF models."""

import math
from typing import Any

from ...model import GgufModel
from ..layers import feed_forward_lengths, layer_types, tensors_are_in_layers
from ..rope import rope_fields

GELU_TANH = "gelu_pytorch_tanh"
XIELU_BETA = 0.5  # the slope at 0
MINICPM_EMBEDDINGS, MINICPM_DEPTH, MINICPM_BASE = 12.0, 1.4, 256  # of older files, which do not say them


def nothing_more(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {}


def llama(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has = {name: model.tensor(f"blk.0.{name}.bias") is not None for name in ("attn_q", "ffn_up")}
    return {"attention_bias": has["attn_q"], "mlp_bias": has["ffn_up"]}


def apertus(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The parameters of its activation are no tensors in files."""
    found = {each: model.metadata.numbers(f"xielu.{each}") for each in ("alpha_p", "alpha_n", "beta")}
    if others := sorted(set(found["beta"]) - {XIELU_BETA}):
        raise model.refused(f"xielu.beta={others[0]} is not supported; only {XIELU_BETA} is")
    alphas = {f"xielu_{each}": found[each] for each in ("alpha_p", "alpha_n")}
    rotary_dim = model.whole("rope.dimension_count", head_dim)
    rope = {"rope_scaling": {"rope_type": "default"}} | rope_fields(model, rotary_dim)  # else Llama 3.1's
    return rope | alphas | {"attention_bias": model.tensor("blk.0.attn_q.bias") is not None}


def mistral3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Ministral 3, or without yarn a Mistral."""
    if model.text("rope.scaling.type", "none") == "yarn":
        return {"sliding_window": None}
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}


def deci(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """A block without heads lacks attention, and one without a length the feed-forward."""
    if (rotary_dim := model.whole("rope.dimension_count", head_dim)) != head_dim:
        raise model.refused(f"rope.dimension_count={rotary_dim} is not supported with heads of {head_dim} elements")
    blocks = []
    for heads, kv_heads, length in zip(
        model.heads_of_layers(), model.kv_heads(), feed_forward_lengths(model), strict=True
    ):
        if heads and (not kv_heads or heads % kv_heads):
            raise model.refused(f"a layer with {heads} heads and {kv_heads} KV heads is not supported for deci")
        attention = {"n_heads_in_group": heads // kv_heads} if heads else {"no_op": True}
        blocks.append({"attention": attention, "ffn": {"intermediate_size": length} if length else {"no_op": True}})
    return rope_fields(model, rotary_dim) | {"block_configs": blocks}


def seed_oss(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return llama(model, head_dim) | {"attention_out_bias": model.tensor("blk.0.attn_output.bias") is not None}


def phi2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"hidden_act": "gelu_new"}


def phi3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    window = model.whole("attention.sliding_window", 0)
    return {"sliding_window": window} if window else {}


def granite(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if not model.truth("rope.scaling.finetuned", True):
        raise model.refused("rope.scaling.finetuned=false, attention without rotation, is not supported for granite")
    return llama(model, head_dim) | multipliers(model, head_dim)


def multipliers(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Those of Granite; 0 and an absent key stand for none."""
    return {
        "embedding_multiplier": model.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": model.number("residual_scale", 0.0) or 1.0,
        "attention_multiplier": model.number("attention.scale", 0.0) or 1 / math.sqrt(head_dim),
        "logits_scaling": model.number("logit_scale", 0.0) or 1.0,
    }


def minicpm(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The file has quotients of config.json's numbers in float32, which six digits give back."""
    layers, hidden_size = model.whole("block_count"), model.whole("embedding_length")
    residuals = model.number("residual_scale", MINICPM_DEPTH / math.sqrt(max(layers, 1)))
    logits = model.number("logit_scale", hidden_size / MINICPM_BASE)
    if logits <= 0:
        raise model.refused(f"minicpm.logit_scale={logits:g} must be above 0")
    return {
        "scale_emb": model.number("embedding_scale", MINICPM_EMBEDDINGS),
        "scale_depth": float(f"{residuals * math.sqrt(layers):.6g}"),
        "dim_model_base": float(f"{hidden_size / logits:.6g}"),
    }


def smollm3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return llama(model, head_dim) | {"no_rope_layers": [(layer + 1) % 4 for layer in range(model.num_layers())]}


def glm4(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if any(model.numbers("rope.dimension_sections", [])):
        raise model.refused("rope.dimension_sections, the rotation of GLM-4V, is not supported for glm4")
    return {"attention_bias": model.tensor("blk.0.attn_q.bias") is not None}


def glm(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has_biases = any(model.tensor(f"blk.0.{name}.bias") is not None for name in ("attn_q", "attn_qkv"))
    return {"attention_bias": has_biases}


def olmo(model: GgufModel, head_dim: int) -> dict[str, Any]:
    clip = model.number("attention.clamp_kqv", 0.0)
    return {"attention_bias": False, "clip_qkv": clip or None}


def _windows(model: GgufModel) -> dict[str, Any]:
    """Of models that have full attention in every fourth layer, if the file does not say otherwise."""
    base = model.number("rope.freq_base", 10000.0)
    if (own := model.number("rope.freq_base_swa", base)) != base:
        raise model.refused(f"rope.freq_base_swa={own:g} other than rope.freq_base={base:g} is not supported")
    return {"sliding_window": model.whole("attention.sliding_window"), "layer_types": layer_types(model, 4)}


def olmo3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _windows(model)


def exaone4(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if not model.whole("attention.sliding_window", 0):
        return {"sliding_window": None, "layer_types": ["full_attention"] * model.num_layers()}
    return _windows(model)


def cohere(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has_norms = model.tensor("blk.0.attn_q_norm.weight") is not None
    return llama(model, head_dim) | {"logit_scale": model.number("logit_scale"), "use_qk_norm": has_norms}


def cohere2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"logit_scale": model.number("logit_scale"), **_windows(model)}


def starcoder2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has_biases = model.tensor("blk.0.attn_q.bias") is not None
    return {"use_bias": has_biases, "hidden_act": GELU_TANH, "sliding_window": None}


def stablelm(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has = {name: model.tensor(f"blk.0.{name}") is not None for name in ("attn_q.bias", "attn_q_norm.weight")}
    # Some files say that layers are parallel although they have the norm that parallel layers lack.
    is_parallel = not tensors_are_in_layers(model, "ffn_norm.weight")
    model.truth("use_parallel_residual", is_parallel)
    return {
        "use_qkv_bias": has["attn_q.bias"],
        "qk_layernorm": has["attn_q_norm.weight"],
        "use_parallel_residual": is_parallel,
    }


def nemotron(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return llama(model, head_dim) | {"hidden_act": "relu2"}


def arcee(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return llama(model, head_dim) | {"hidden_act": "relu2"}


def falcon(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Parallel layers, with two norms or one, as all Falcon models that files are made of."""
    heads = model.whole("attention.head_count_kv", 1)
    num_norms = 2 if tensors_are_in_layers(model, "attn_norm_2.weight") else 1
    if not (is_grouped := num_norms == 2 or heads > 1):
        return {"multi_query": True, "parallel_attn": True, "bias": False, "alibi": False}
    return {
        "new_decoder_architecture": is_grouped,
        "num_kv_heads": heads,
        "num_ln_in_parallel_attn": num_norms,
        "bias": False,
        "alibi": False,
    }


def mpt(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Without ALiBi such a model has learned positions, which its family refuses by the field."""
    steepest, heads = model.number("attention.max_alibi_bias", 0.0), model.whole("attention.head_count")
    are_shared = model.whole("attention.head_count_kv", heads) != heads
    return {
        "attn_config": {
            "alibi": steepest > 0,
            "alibi_bias_max": steepest,
            "attn_type": "grouped_query_attention" if are_shared else "multihead_attention",
            "clip_qkv": model.number("attention.clamp_kqv", 0.0) or None,
        }
    }


def gpt2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"activation_function": "gelu_new"}


def starcoder(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if (heads := model.whole("attention.head_count_kv", 1)) != 1:
        raise model.refused(f"starcoder.attention.head_count_kv={heads} is not supported; 1 is")
    return {"activation_function": GELU_TANH, "multi_query": True}


def gptneox(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has_biases = model.tensor("blk.0.attn_qkv.bias") is not None
    is_parallel = model.truth("use_parallel_residual", True)
    return {"hidden_act": "gelu", "attention_bias": has_biases, "use_parallel_residual": is_parallel}
