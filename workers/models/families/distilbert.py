"""DistilBERT: as BERT, but without token types."""

from dataclasses import replace
from typing import Any

from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from . import bert
from .family import renamed

FIELDS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "activation": "hidden_act",
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, hidden_act="gelu", rms_norm_eps=1e-12)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    return found


LAYER = "distilbert.transformer.layer.{}."
NAMES = WeightNames(
    embedding="distilbert.embeddings.word_embeddings.weight",
    positions="distilbert.embeddings.position_embeddings.weight",
    embedding_norm="distilbert.embeddings.LayerNorm.weight",
    attention_norm=f"{LAYER}sa_layer_norm.weight",
    mlp_norm=f"{LAYER}output_layer_norm.weight",
    query=f"{LAYER}attention.q_lin",
    key=f"{LAYER}attention.k_lin",
    value=f"{LAYER}attention.v_lin",
    output=f"{LAYER}attention.out_lin",
    up=f"{LAYER}ffn.lin1",
    down=f"{LAYER}ffn.lin2",
    unused=(".position_ids", *bert.with_biases("vocab_transform", "vocab_layer_norm", "vocab_projector")),
)
DISTILBERT = replace(
    bert.BERT,
    name="distilbert",
    architectures=("DistilBertModel",),
    weight_names=NAMES,
    config=config,
    label_layers=(LabelLayer("pre_classifier", "relu"), LabelLayer("classifier")),
)
