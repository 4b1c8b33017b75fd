"""GPT-2: layer norms, learned positions, no gate; matrices in the order [in, out], one for q, k and v."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, biases_of_layers, need, renamed

FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, hidden_act="gelu_new", rms_norm_eps=1e-5, tie_word_embeddings=True)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    if isinstance(size := found.get("hidden_size"), int):
        found.setdefault("intermediate_size", 4 * size)
    need("GPT-2", found, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    return found


LAYER = "transformer.h.{}."
QKV = f"{LAYER}attn.c_attn"
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}ln_1.weight",
    mlp_norm=f"{LAYER}ln_2.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}attn.c_proj",
    up=f"{LAYER}mlp.c_fc",
    down=f"{LAYER}mlp.c_proj",
    positions="transformer.wpe.weight",
    are_transposed=True,
    unused=(".attn.bias", ".attn.masked_bias"),
)
GPT2 = Family("gpt2", ("GPT2LMHeadModel",), NAMES, biases_of_layers, norm="layer", is_gated=False, config=config)
