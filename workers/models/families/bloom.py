"""Bloom: ALiBi instead of position embeddings, layer norms (also after the embedding), no gate."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, biases_of_layers, need, no_ropes, renamed, usual_slopes

FIELDS = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "seq_length": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Bloom", fields, apply_residual_connection_post_layernorm=False)
    found = renamed(fields, FIELDS, **DEFAULTS, hidden_act="gelu_pytorch_tanh")
    found["num_key_value_heads"] = found["head_dim"] = None  # both are fixed, whatever config.json says
    if isinstance(size := found.get("hidden_size"), int):
        found["intermediate_size"] = 4 * size
    return found


LAYER = "transformer.h.{}."
QKV = f"{LAYER}self_attention.query_key_value"
NAMES = WeightNames(
    embedding="transformer.word_embeddings.weight",
    embedding_norm="transformer.word_embeddings_layernorm.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}input_layernorm.weight",
    mlp_norm=f"{LAYER}post_attention_layernorm.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    are_grouped=True,
    output=f"{LAYER}self_attention.dense",
    up=f"{LAYER}mlp.dense_h_to_4h",
    down=f"{LAYER}mlp.dense_4h_to_h",
)
BLOOM = Family(
    "bloom",
    ("BloomForCausalLM",),
    NAMES,
    biases_of_layers,
    norm="layer",
    is_gated=False,
    ropes=no_ropes,
    slopes=usual_slopes,
    config=config,
)
