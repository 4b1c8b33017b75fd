"""DeBERTa v2 and v3: as BERT, with disentangled attention instead of positions."""

import math
from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.layer_options import Disentangled
from ...geometry.model_options import Multipliers
from ...pooling.head import LabelLayer
from . import bert
from .family import need, no_ropes, renamed

FIELDS = {"layer_norm_eps": "rms_norm_eps", "attention_head_size": "head_dim"}
NEEDED = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
DEFAULTS = bert.DEFAULTS | {"rms_norm_eps": 1e-7, "type_vocab_size": 0}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeBERTa", fields, conv_kernel_size=0, pooler_hidden_act="gelu")
    for name in ("embedding_size", "pooler_hidden_size"):
        need("DeBERTa", fields, **{name: fields.get("hidden_size")})
    for name, value in NEEDED.items():
        if fields.get(name) != value:
            raise ConfigError(f"config.json: {name}={fields.get(name)} is not supported for DeBERTa; only {value} is")
    kinds = fields.get("pos_att_type")
    if sorted(kinds.lower().split("|") if isinstance(kinds, str) else kinds or ()) != ["c2p", "p2c"]:
        raise ConfigError(f"config.json: pos_att_type={kinds!r} is not supported for DeBERTa; only 'p2c|c2p' is")
    return renamed(fields, FIELDS, **DEFAULTS) | {"num_key_value_heads": None}


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    """A score is the sum of three products."""
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return Multipliers(scores=1.0 / math.sqrt(3 * head_dim))


def disentangled(config: HFConfig) -> Disentangled:
    stated, buckets = config.max_relative_positions, config.position_buckets
    most = stated if stated >= 1 else config.max_position_embeddings
    if most - 1 <= buckets // 2:
        raise ConfigError(f"config.json: max_relative_positions={most} must be more than half of {buckets} buckets")
    return Disentangled(buckets, most)


LAYER = "deberta.encoder.layer.{}."
NAMES = replace(
    bert.weight_names("deberta"),
    positions="",
    query=f"{LAYER}attention.self.query_proj",
    key=f"{LAYER}attention.self.key_proj",
    value=f"{LAYER}attention.self.value_proj",
    distances="deberta.encoder.rel_embeddings.weight",
    distances_norm="deberta.encoder.LayerNorm.weight",
    unused=(
        ".position_ids",
        "embeddings.position_embeddings.weight",
        *bert.with_biases("pooler.dense", "lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm"),
        *bert.with_biases(*(f"mask_predictions.{name}" for name in ("dense", "LayerNorm", "classifier"))),
        "lm_predictions.lm_head.bias",
        *bert.MASKED_LM,
    ),
)
DEBERTA_V2 = replace(
    bert.BERT,
    name="deberta_v2",
    architectures=("DebertaV2Model",),
    weight_names=NAMES,
    ropes=no_ropes,
    multipliers=multipliers,
    disentangled=disentangled,
    config=config,
    label_layers=(LabelLayer("pooler.dense", "gelu"), LabelLayer("classifier")),
)
