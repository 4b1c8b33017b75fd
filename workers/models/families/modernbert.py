"""ModernBERT: an encoder with pre-norms, rotary embeddings, gated feed-forward, local attention in most layers."""

from typing import Any

from msgspec.structs import replace

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from .family import FULL, SLIDING, Family, need, renamed
from .llama import biases
from .rope_config import rope_of

FIELDS = {
    "norm_eps": "rms_norm_eps",
    "hidden_activation": "hidden_act",
    "local_attention": "sliding_window",
    "global_attn_every_n_layers": "sliding_window_pattern",
    "global_rope_theta": "rope_theta",
    "local_rope_theta": "rope_local_base_freq",
}
DEFAULTS = {"hidden_act": "gelu", "rms_norm_eps": 1e-5, "sliding_window": 128, "rope_theta": 160000.0}
LAYER = "model.layers.{}."
HEAD = (LabelLayer("head.dense", "gelu", "head.norm"), LabelLayer("classifier"))


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ModernBERT", fields, norm_bias=False, classifier_activation="gelu", position_embedding_type="absolute")
    every, reach = fields.get("global_attn_every_n_layers"), fields.get("local_attention")
    if every is not None and (not isinstance(every, int) or every < 1):
        need("ModernBERT", fields, global_attn_every_n_layers=3)
    if isinstance(reach, int) and reach < 2:
        raise ConfigError(f"config.json: local_attention={reach} must be at least 2, half on each side of a token")
    return renamed(fields, FIELDS, **DEFAULTS) | {"num_key_value_heads": None}


def kinds(config: HFConfig) -> list[str]:
    every = config.sliding_window_pattern or 3
    return config.layer_types or [SLIDING if layer % every else FULL for layer in range(config.num_hidden_layers)]


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    given, thetas = config.rope_parameters or {}, {FULL: config.rope_theta, SLIDING: config.rope_local_base_freq}
    of_kind = {kind: rope_of(replace(config, rope_theta=thetas[kind]), given.get(kind) or {}) for kind in thetas}
    return tuple(of_kind[kind] for kind in kinds(config))


def reaches(config: HFConfig) -> tuple[int, ...]:
    """The positions on each side of a token that a layer attends to: half of `local_attention`; 0: all."""
    return tuple((config.sliding_window or 0) // 2 if kind == SLIDING else 0 for kind in kinds(config))


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
