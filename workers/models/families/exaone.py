"""EXAONE 3 and 3.5: Llama with other names of fields and tensors."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, renamed

FIELDS = {
    "num_layers": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, FIELDS, rms_norm_eps=1e-5)


LAYER = "transformer.h.{}."
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}ln_1.weight",
    mlp_norm=f"{LAYER}ln_2.weight",
    query=f"{LAYER}attn.attention.q_proj",
    key=f"{LAYER}attn.attention.k_proj",
    value=f"{LAYER}attn.attention.v_proj",
    output=f"{LAYER}attn.attention.out_proj",
    gate=f"{LAYER}mlp.c_fc_0",
    up=f"{LAYER}mlp.c_fc_1",
    down=f"{LAYER}mlp.c_proj",
)
EXAONE = Family("exaone", ("ExaoneForCausalLM",), NAMES, config=config)
