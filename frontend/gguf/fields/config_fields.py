"""config.json of a GGUF model: the fields that its architecture has in Hugging Face checkpoints."""

from typing import Any

from ..model import GgufModel
from .architectures import Architecture, supported
from .layers import feed_forward_length
from .rope import rope_fields
from .unread import check_unread

NORM_KEYS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")


def config_fields(model: GgufModel) -> dict[str, Any]:
    """The fields. Raises ConfigError for what is not supported, by its name."""
    architecture = supported(model)
    embedding = model.tensor("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise model.refused("it has no matrix token_embd.weight")
    sizes, layers = _sizes(model, architecture), model.num_layers()
    fields = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "num_hidden_layers": layers,
        "max_position_embeddings": model.whole("context_length"),
        "vocab_size": embedding.shape[0],
        architecture.epsilon: _epsilon(model, architecture),
        "tie_word_embeddings": model.tensor("output.weight") is None,
        "torch_dtype": _dtype(model),
        **sizes,
        **_further(model, architecture),
        **architecture.more(model, sizes.get("head_dim", 0)),
    }
    check_unread(model)
    return fields


def _sizes(model: GgufModel, architecture: Architecture) -> dict[str, Any]:
    """Those of attention and the feed-forward, and the rotation."""
    hidden_size = model.whole("embedding_length")
    if architecture.heads == "none":
        return {"hidden_size": hidden_size}
    differ = architecture.heads in ("of_layers", "of_kinds")
    heads = max(model.heads_of_layers()) if differ else model.whole("attention.head_count")
    if heads < 1 or hidden_size < 1:
        raise model.refused(f"attention.head_count={heads} and embedding_length={hidden_size} must be at least 1")
    head_dim = model.whole("attention.key_length", hidden_size // heads)
    rotary_dim = model.whole("rope.dimension_count", head_dim)
    if architecture.heads == "of_kinds":  # the architecture's own fields say the rest
        return {"hidden_size": hidden_size, "num_attention_heads": heads, "head_dim": head_dim}
    if architecture.heads != "latent":
        _check_heads(model, architecture, head_dim, rotary_dim)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": feed_forward_length(model),
        "num_attention_heads": heads,
        "num_key_value_heads": _num_kv_heads(model, architecture, heads),
        "head_dim": head_dim,
        **rope_fields(model, rotary_dim),
        **({"partial_rotary_factor": rotary_dim / head_dim} if architecture.is_partial else {}),
    }


def _num_kv_heads(model: GgufModel, architecture: Architecture, heads: int) -> int:
    """Of all layers that have attention. Raises ConfigError if they differ."""
    are_by_layer = isinstance(model.metadata.values.get(model.key("attention.head_count_kv")), list)
    if architecture.heads == "latent" and are_by_layer:
        return heads  # of the shared vector the file has one
    if architecture.heads != "of_some_layers":
        return model.whole("attention.head_count_kv", heads)
    if len(found := set(model.kv_heads()) - {0}) > 1:
        raise model.refused(f"layers with {sorted(found)} KV heads are not supported; only with equally many")
    return max(found, default=heads)


def _epsilon(model: GgufModel, architecture: Architecture) -> float:
    """The one of the architecture's kind of norm if the file has several."""
    keys = NORM_KEYS if architecture.epsilon == "rms_norm_eps" else NORM_KEYS[::-1]
    return model.number(next((key for key in keys if model.has(key)), keys[0]))


def _further(model: GgufModel, architecture: Architecture) -> dict[str, Any]:
    """The number of layers for multi-token prediction. Raises ConfigError if the architecture has none."""
    further = model.whole("nextn_predict_layers", 0)
    if further and not architecture.predicts_further:
        raise model.refused(f"nextn_predict_layers={further} is not supported for {model.architecture}")
    return {"num_nextn_predict_layers": further} if further else {}


def _check_heads(model: GgufModel, architecture: Architecture, head_dim: int, rotary_dim: int) -> None:
    value_dim = model.whole("attention.value_length", head_dim)
    if head_dim < 2 or value_dim != head_dim:
        raise model.refused(f"keys have {head_dim} elements a head and values {value_dim}; equal sizes are supported")
    if rotary_dim != head_dim and not (architecture.is_partial and 0 < rotary_dim < head_dim):
        raise model.refused(f"rope.dimension_count={rotary_dim} is not supported with heads of {head_dim} elements")


def _dtype(model: GgufModel) -> str:
    """The dtype of the matrices; bfloat16 if any is quantized, since its range is float32's.

    Converters write small matrices, such as routers and convolutions, as F32 whatever the model's dtype.
    """
    found = {each.format.name for file in model.files for each in file.tensors.values() if len(each.shape) > 1}
    others = found - {"F32"} or found
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(others), "bfloat16")
