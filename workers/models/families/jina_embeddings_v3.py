"""Jina embeddings v3: as XLM-RoBERTa, with rotary embeddings instead of learned positions."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from . import bert
from .family import renamed, rope_everywhere
from .roberta import ROBERTA

DEFAULTS = bert.DEFAULTS | {"rms_norm_eps": 1e-5, "type_vocab_size": 1, "rope_theta": 20_000.0}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {"layer_norm_eps": "rms_norm_eps"}, **DEFAULTS) | {"num_key_value_heads": None}


EMBEDDINGS = WeightNames(
    embedding="roberta.embeddings.word_embeddings.weight",
    token_types="roberta.embeddings.token_type_embeddings.weight",
    embedding_norm="roberta.embeddings.LayerNorm.weight",
    unused=(".position_ids", *bert.with_biases("pooler.dense"), *bert.MASKED_LM),
)
OF_TRANSFORMERS = bert.of_transformers(EMBEDDINGS, "roberta", up="fc1", down="fc2")
SAVED_LAYER = "roberta.encoder.layers.{}."
AS_SAVED = replace(  # by transformers' save_pretrained, with the names of the model's own code
    OF_TRANSFORMERS,
    embedding_norm="roberta.emb_ln.weight",
    attention_norm=f"{SAVED_LAYER}norm1.weight",
    mlp_norm=f"{SAVED_LAYER}norm2.weight",
    query=f"{SAVED_LAYER}mixer.Wqkv",
    key=f"{SAVED_LAYER}mixer.Wqkv",
    value=f"{SAVED_LAYER}mixer.Wqkv",
    output=f"{SAVED_LAYER}mixer.out_proj",
    up=f"{SAVED_LAYER}mlp.fc1",
    down=f"{SAVED_LAYER}mlp.fc2",
)
JINA_EMBEDDINGS_V3 = replace(
    ROBERTA,
    name="jina_embeddings_v3",
    architectures=("JinaEmbeddingsV3Model",),
    weight_names=replace(OF_TRANSFORMERS, others=(AS_SAVED,)),
    ropes=rope_everywhere,
    config=config,
)
