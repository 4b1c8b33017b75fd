"""Nomic BERT: as BERT, with rotary embeddings and a gated feed-forward; usually without biases."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from . import bert
from .family import need, renamed, rope_everywhere

FIELDS = {  # of the published files, which are for the model's own code
    "activation_function": "hidden_act",
    "layer_norm_eps": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "qkv_proj_bias": "attention_bias",
    "mlp_fc1_bias": "mlp_bias",
    "mlp_fc2_bias": "down_bias",
}
GATED = {"swiglu": "silu", "geglu": "gelu"}  # names of activations in the published files
DEFAULTS = bert.DEFAULTS | {"hidden_act": "silu", "rope_theta": 1000.0}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Nomic BERT", fields, causal=False, prenorm=False, parallel_block=False, use_rms_norm=False, num_experts=0)
    need("Nomic BERT", fields, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None)
    need("Nomic BERT", fields, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    given = fields.get("activation_function")
    if given is not None and given not in GATED:
        known = " and ".join(GATED)
        raise ConfigError(f"config.json: activation_function={given!r} is not supported for Nomic BERT; {known} are")
    found = renamed(fields, FIELDS, **DEFAULTS) | {"num_key_value_heads": None}
    if given is not None:
        found["hidden_act"] = GATED[given]
    return with_trained_positions(found)


def with_trained_positions(found: dict[str, Any]) -> dict[str, Any]:
    """Up to the trained length positions are rotated as in training; beyond, they depend on the length of the text."""
    trained, stated = found.get("max_trained_positions"), found.get("max_position_embeddings")
    if isinstance(trained, int) and isinstance(stated, int):
        found["max_position_embeddings"] = min(trained, stated)
    return found


def biases(config: HFConfig) -> Biases:
    return Biases(config.attention_bias, config.attention_bias, config.mlp_bias, down=config.down_bias)


LAYER = "nomic_bert.encoder.layers.{}."
UNUSED = (*bert.with_biases("pooler.dense"), *bert.MASKED_LM, *bert.with_biases(f"{bert.TRANSFORM}.layer_norm"))
PUBLISHED = WeightNames(
    embedding="nomic_bert.embeddings.word_embeddings.weight",
    token_types="nomic_bert.embeddings.token_type_embeddings.weight",
    embedding_norm="nomic_bert.emb_ln.weight",
    attention_norm=f"{LAYER}norm1.weight",
    mlp_norm=f"{LAYER}norm2.weight",
    query=f"{LAYER}attn.Wqkv",
    key=f"{LAYER}attn.Wqkv",
    value=f"{LAYER}attn.Wqkv",
    output=f"{LAYER}attn.out_proj",
    gate=f"{LAYER}mlp.fc12",
    up=f"{LAYER}mlp.fc11",
    down=f"{LAYER}mlp.fc2",
    unused=("rotary_emb.inv_freq", *UNUSED),
)
OF_TRANSFORMERS = replace(
    bert.of_transformers(PUBLISHED, "nomic_bert", **bert.GATED),
    embedding_norm="nomic_bert.embeddings.LayerNorm.weight",
)
NOMIC_BERT = replace(
    bert.BERT,
    name="nomic_bert",
    architectures=("NomicBertModel",),
    weight_names=replace(PUBLISHED, others=(OF_TRANSFORMERS, PUBLISHED.begun("nomic_bert.", "bert."))),
    biases=biases,
    is_gated=True,
    ropes=rope_everywhere,
    config=config,
    label_layers=(
        LabelLayer("nomic_bert.pooler.dense", "tanh", other_names=("bert.pooler.dense",)),
        LabelLayer("classifier"),
    ),
)
