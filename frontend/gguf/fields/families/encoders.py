"""The fields of config.json of encoders. Files do not name the activation: each architecture has one in llama.cpp."""

from typing import Any

from ...model import GgufModel
from ..layers import layer_types
from .dense import llama

FIRST_POSITION = 2  # in RoBERTa's config.json; files have no rows for the positions before
LABELS = "classifier.output_labels"
SCORES = "cls.output.weight"
POOLER = (
    "its classifier has no layer cls.weight before cls.output.weight: converters leave out the pooler of BERT's "
    "cross-encoders (bert.pooler.dense), so its scores would be wrong; serve the model's own folder"
)


def bert(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """BERT, and RoBERTa and DistilBERT, whose files differ only in the number of token types."""
    if scores_labels(model) or model.tensor("cls.weight") is not None:
        raise model.refused(POOLER)
    if model.has(LABELS):  # of models without a classifier too
        model.key(LABELS)
    return {"hidden_act": "gelu", **_of_encoders(model)}


def bert_classifier(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The classifiers and rerankers of RoBERTa and XLM-R: two layers from the first token to the labels."""
    scores = model.tensor(SCORES)
    if scores is None or len(scores.shape) != 2 or model.tensor("cls.weight") is None:
        raise model.refused(POOLER)
    if model.tensor("token_types.weight") is None:
        raise model.refused("a classifier without token types, such as DistilBERT's, is not supported")
    labels = model.metadata.texts(model.key(LABELS)) if model.has(LABELS) else []
    if labels and len(labels) != scores.shape[0]:
        raise model.refused(f"{LABELS} has {len(labels)} labels, but {SCORES} {scores.shape[0]} rows")
    names = labels or [f"LABEL_{label}" for label in range(scores.shape[0])]
    return {
        "hidden_act": "gelu",
        "max_position_embeddings": model.whole("context_length") + FIRST_POSITION,
        "pad_token_id": FIRST_POSITION - 1,
        "id2label": {str(label): name for label, name in enumerate(names)},
        **_of_encoders(model),
    }


def nomic_bert(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has = {name: model.tensor(f"blk.0.{name}.bias") is not None for name in ("attn_qkv", "ffn_up", "ffn_down")}
    biases = {"qkv_proj_bias": has["attn_qkv"], "mlp_fc1_bias": has["ffn_up"], "mlp_fc2_bias": has["ffn_down"]}
    return {"activation_function": "swiglu", **biases, **_of_encoders(model)}


def modern_bert(model: GgufModel, head_dim: int) -> dict[str, Any]:
    _check_encoder(model)
    model.key("classifier.pooling_type")  # of models without a classifier too
    window = model.whole("attention.sliding_window", 0)
    if isinstance(model.metadata.values.get(model.key("attention.sliding_window_pattern")), list):
        every: dict[str, Any] = {"layer_types": layer_types(model, 3)}
    else:
        every = {"global_attn_every_n_layers": model.whole("attention.sliding_window_pattern", 3) if window else 1}
    return every | {
        "local_attention": window or 2,
        "hidden_activation": model.text("hidden_activation", "gelu"),
        "global_rope_theta": model.number("rope.freq_base", 160000.0),
        "local_rope_theta": model.number("rope.freq_base_swa", 10000.0),
        "num_key_value_heads": None,
    }


def eurobert(model: GgufModel, head_dim: int) -> dict[str, Any]:
    _check_encoder(model)
    model.key("classifier.pooling_type")
    return llama(model, head_dim)


def _check_encoder(model: GgufModel) -> None:
    if scores_labels(model) or model.tensor("cls.weight") is not None:
        raise model.refused(f"a classifier, cls.weight or {SCORES}, is not supported for {model.architecture}")
    if model.truth("attention.causal", False):
        raise model.refused(f"{model.architecture}.attention.causal=True is not supported for an encoder")


def scores_labels(model: GgufModel) -> bool:
    return model.tensor(SCORES) is not None


def _of_encoders(model: GgufModel) -> dict[str, Any]:
    if model.truth("attention.causal", False):
        raise model.refused(f"{model.architecture}.attention.causal=True is not supported for an encoder")
    types = model.tensor("token_types.weight")
    return {"type_vocab_size": 0 if types is None else types.shape[0]}
