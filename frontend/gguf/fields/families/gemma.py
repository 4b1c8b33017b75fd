"""The fields of config.json that the models of Gemma have besides those of all GGUF models."""

from statistics import NormalDist
from typing import Any

from ...model import GgufModel
from ..layers import FULL, SLIDING, feed_forward_lengths, layer_types, rows_of
from .dense import GELU_TANH
from .experts import counts, expert_size

# llama.cpp recognises the 27B models, whose scores have another scale, by their number of layers.
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
UNROTATED = 1e29  # divisors above it turn a pair by nothing


def gemma(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"hidden_activation": GELU_TANH}


def _scalar(model: GgufModel, head_dim: int) -> float:
    """The scores' divisor, squared."""
    if model.has("attention.scale"):
        if not (scale := model.number("attention.scale")) > 0:
            raise model.refused(f"attention.scale={scale:g} must be above 0")
        return scale**-2
    if model.whole("block_count") == LAYERS_OF_27B.get(model.architecture):
        return model.whole("embedding_length") / model.whole("attention.head_count")
    return head_dim


def gemma2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return gemma(model, head_dim) | {
        "query_pre_attn_scalar": _scalar(model, head_dim),
        "sliding_window": model.whole("attention.sliding_window", 4096),
        "attn_logit_softcapping": model.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": model.number("final_logit_softcapping", 30.0),
    }


def gemma3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return gemma(model, head_dim) | {
        "query_pre_attn_scalar": _scalar(model, head_dim),
        "sliding_window": model.whole("attention.sliding_window"),
        "rope_local_base_freq": model.number("rope.freq_base_swa", 10000.0),
        "layer_types": layer_types(model, 6),
    }


def gemma_embedding(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if model.truth("attention.causal", False):
        raise model.refused("attention.causal=True is not supported for gemma-embedding")
    return gemma3(model, head_dim) | {"use_bidirectional_attention": True}


def gemma3n(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The file has, for each layer, the number of deviations above the mean up to which gates are dropped."""
    found = gemma(model, head_dim) | {
        "sliding_window": model.whole("attention.sliding_window"),
        "rope_local_base_freq": model.number("rope.freq_base_swa", 10000.0),
        "layer_types": layer_types(model, 5),
        "num_kv_shared_layers": model.whole("attention.shared_kv_layers", 15),
        "final_logit_softcapping": model.number("final_logit_softcapping", 30.0),
        "altup_num_inputs": model.whole("altup.num_inputs", 4),
        "altup_active_idx": model.whole("altup.active_idx", 0),
        "hidden_size_per_layer_input": model.whole("embedding_length_per_layer_input", 256),
        "vocab_size_per_layer_input": rows_of(model, "per_layer_token_embd.weight"),
        "laurel_rank": rows_of(model, "blk.0.laurel_l.weight"),
    }
    if model.has("activation_sparsity_scale"):
        cuts = model.numbers("activation_sparsity_scale")
        found["activation_sparsity_pattern"] = [float(f"{NormalDist().cdf(cut):.6g}") for cut in cuts]
    return found


def gemma4(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The file's sizes of heads are those of layers with full attention; those of windows are named apart."""
    kinds = layer_types(model, 6)
    if head_dim < 2:
        raise model.refused(f"attention.key_length={head_dim} must be at least 2")
    size = model.whole("attention.key_length_swa", head_dim)
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if (other := model.whole(key, size)) != size:
            raise model.refused(f"{key}={other} other than attention.key_length_swa={size} is not supported")
    found = gemma(model, head_dim) | {
        "layer_types": kinds,
        "sliding_window": model.whole("attention.sliding_window"),
        "head_dim": size,
        "global_head_dim": head_dim,
        "final_logit_softcapping": model.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": _ropes(model, head_dim),
        **_kv_heads(model, kinds),
        **_shared_layers(model),
        "hidden_size_per_layer_input": model.whole("embedding_length_per_layer_input", 0),
    }
    if found["hidden_size_per_layer_input"]:
        found["vocab_size_per_layer_input"] = rows_of(model, "per_layer_token_embd.weight")
    if model.whole("expert_count", 0):
        count, used = counts(model)
        sizes = {"num_experts": count, "top_k_experts": used, "moe_intermediate_size": expert_size(model)}
        found |= sizes | {"enable_moe_block": True}
    return found


def _ropes(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Of both kinds of layers. Where attention is full, pairs that are not rotated have huge divisors in the file."""
    full: dict[str, Any] = {"rope_type": "proportional", "rope_theta": model.number("rope.freq_base", 1e6)}
    divisors = model.floats("rope_freqs.weight") or []
    num_pairs = divisors.count(1.0)
    are_rotated = [True] * num_pairs + [False] * (head_dim // 2 - num_pairs)
    if [each == 1.0 for each in divisors] != are_rotated or any(1.0 != each < UNROTATED for each in divisors):
        raise model.refused(f"rope_freqs.weight must have {head_dim // 2} numbers, each 1 and then each 1e30")
    full["partial_rotary_factor"] = 2 * num_pairs / head_dim
    local = {"rope_type": "default", "rope_theta": model.number("rope.freq_base_swa", 10000.0)}
    return {FULL: full, SLIDING: local}


def _kv_heads(model: GgufModel, kinds: list[str]) -> dict[str, Any]:
    """The numbers of KV heads. Layers with full attention have others only where their values are their keys."""
    heads = model.kv_heads()
    own = range(len(kinds) - model.whole("attention.shared_kv_layers", 0))
    full = [layer for layer in own if kinds[layer] != SLIDING]
    are_keys_values = {model.tensor(f"blk.{layer}.attn_v.weight") is None for layer in full}
    of_kind = {kind: {count for each, count in zip(kinds, heads, strict=True) if each == kind} for kind in kinds}
    if len(are_keys_values) > 1 or any(len(counts) > 1 for counts in of_kind.values()):
        raise model.refused(
            "its layers of one kind have different numbers of KV heads, or only some have attn_v.weight"
        )
    local_heads = max(of_kind.get(SLIDING, heads))
    global_heads = max(of_kind.get(FULL, {local_heads}))
    if True in are_keys_values:
        same: dict[str, Any] = {"attention_k_eq_v": True, "num_global_key_value_heads": global_heads}
        return same | {"num_key_value_heads": local_heads}
    if global_heads != local_heads:
        raise model.refused(f"{global_heads} KV heads of full attention and {local_heads} of windows are not supported")
    return {"num_key_value_heads": local_heads}


def _shared_layers(model: GgufModel) -> dict[str, Any]:
    """The last layers, which read the keys and values of others and may have wider feed-forwards."""
    shared, sizes = model.whole("attention.shared_kv_layers", 0), feed_forward_lengths(model)
    first = len(sizes) - shared
    is_wide = shared > 0 and sizes[-1] != sizes[0]
    if shared >= len(sizes) or sizes != [sizes[0]] * first + [sizes[0] * (1 + is_wide)] * shared:
        raise model.refused(
            f"feed_forward_length={sizes[:20]} must be one size for all layers, twice that for the last {shared}"
        )
    return {"num_kv_shared_layers": shared, "intermediate_size": sizes[0], "use_double_wide_mlp": is_wide}
