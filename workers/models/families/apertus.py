"""Apertus: as Llama 3.1, with QK norm, and an ungated feed-forward with xIELU, whose parameters each layer learns."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention, need

LAYER = "model.layers.{}."
NAMES = WeightNames(
    attention_norm=f"{LAYER}attention_layernorm.weight",
    mlp_norm=f"{LAYER}feedforward_layernorm.weight",
    activation=f"{LAYER}mlp.act_fn",
    unused=("rotary_emb.inv_freq", "mlp.act_fn.beta", "mlp.act_fn.eps"),
)
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Apertus", fields, mlp_bias=False, post_norm=False, qk_norm=True)
    found = {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_theta": 12e6} | fields
    if all(found.get(name) is None for name in ("rope_scaling", "rope_parameters")):
        found["rope_parameters"] = ROPE
    return found


APERTUS = Family(
    name="apertus",
    architectures=("ApertusForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_attention,
    qk_norm=True,
    is_gated=False,
    config=config,
)
