"""ModernBERT: an encoder with pre-norms, rotary embeddings, gated feed-forward, local attention in most layers."""

from typing import Any

from ...checkpoint.geometry import RopeScaling
from ...checkpoint.hf_config import HFConfig, rope_of
from ...pooling.head import LabelLayer
from .family import FULL, SLIDING, Biases, Family, WeightNames, need, renamed

FIELDS = {"norm_eps": "rms_norm_eps", "hidden_activation": "hidden_act", "local_attention": "sliding_window"}
DEFAULTS: dict[str, Any] = {"hidden_act": "gelu", "rms_norm_eps": 1e-5, "sliding_window": 128}
THETA = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
LAYER = "model.layers.{}."
HEAD = (LabelLayer("head.dense", "gelu", "head.norm"), LabelLayer("classifier"))


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ModernBERT", fields, norm_bias=False, classifier_activation="gelu", position_embedding_type="absolute")
    found = renamed(fields, FIELDS, **DEFAULTS)
    every = found.get("global_attn_every_n_layers", 3)
    if not isinstance(every, int) or every < 1:
        need("ModernBERT", found, global_attn_every_n_layers=3)
    kinds = [SLIDING if layer % every else FULL for layer in range(found.get("num_hidden_layers", 0))]
    given = found.get("rope_parameters") or {}
    ropes = {
        kind: {"rope_theta": found.get(name, theta)} | given.get(kind, {}) for kind, (name, theta) in THETA.items()
    }
    return {"layer_types": kinds} | found | {"rope_parameters": ropes, "num_key_value_heads": None}


def kinds(config: HFConfig) -> list[str]:
    return config.layer_types or []


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    of_kind = {kind: rope_of(config, (config.rope_parameters or {})[kind]) for kind in THETA}
    return tuple(of_kind[kind] for kind in kinds(config))


def reaches(config: HFConfig) -> tuple[int, ...]:
    """The positions on each side of a token that a layer attends to: half of `local_attention`; 0: all."""
    return tuple((config.sliding_window or 0) // 2 if kind == SLIDING else 0 for kind in kinds(config))


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, mlp=config.mlp_bias)


MODERNBERT = Family(
    "modernbert",
    ("ModernBertModel",),
    WeightNames(
        embedding="model.embeddings.tok_embeddings.weight",
        embedding_norm="model.embeddings.norm.weight",
        final_norm="model.final_norm.weight",
        attention_norm=f"{LAYER}attn_norm.weight",
        has_first_attention_norm=False,
        mlp_norm=f"{LAYER}mlp_norm.weight",
        query=f"{LAYER}attn.Wqkv",
        key=f"{LAYER}attn.Wqkv",
        value=f"{LAYER}attn.Wqkv",
        output=f"{LAYER}attn.Wo",
        gate=f"{LAYER}mlp.Wi",
        up=f"{LAYER}mlp.Wi",
        down=f"{LAYER}mlp.Wo",
        unused=("head.dense.weight", "head.norm.weight", "decoder.weight", "decoder.bias"),
    ),
    biases,
    norm="unbiased_layer",
    ropes=ropes,
    reaches=reaches,
    config=config,
    is_bidirectional=True,
    label_layers=HEAD,
    token_label_layers=HEAD,
)
