"""ALBERT: as BERT, with projected embeddings; all layers have the same weights."""

from dataclasses import replace
from typing import Any

from ...pooling.head import LabelLayer
from . import bert
from .family import need

LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0."
NAMES = replace(
    bert.weight_names("albert"),
    project_in="albert.encoder.embedding_hidden_mapping_in",
    attention_norm=f"{LAYER}attention.LayerNorm.weight",
    mlp_norm=f"{LAYER}full_layer_layer_norm.weight",
    query=f"{LAYER}attention.query",
    key=f"{LAYER}attention.key",
    value=f"{LAYER}attention.value",
    output=f"{LAYER}attention.dense",
    up=f"{LAYER}ffn",
    down=f"{LAYER}ffn_output",
    unused=(
        ".position_ids",
        *bert.with_biases("pooler", "sop_classifier.classifier"),
        *bert.with_biases(*(f"predictions.{name}" for name in ("dense", "LayerNorm", "decoder"))),
        "predictions.bias",
    ),
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ALBERT", fields, num_hidden_groups=1, inner_group_num=1)
    size = fields.get("embedding_size")
    defaults = {"hidden_act": "gelu_new", "word_embed_proj_dim": 128 if size is None else size}
    return bert.config(defaults | fields)


ALBERT = replace(
    bert.BERT,
    name="albert",
    architectures=("AlbertModel",),
    weight_names=NAMES,
    config=config,
    label_layers=(LabelLayer("albert.pooler", "tanh"), LabelLayer("classifier")),
)
