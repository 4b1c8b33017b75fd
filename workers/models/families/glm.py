"""GLM-4-9B and GLM-4-0414: interleaved, partial rotation; the latter has pre- and post-norms."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, biases_of_qkv, partial_rope_everywhere, renamed

LAYER = "model.layers.{}."
GATE_UP = f"{LAYER}mlp.gate_up_proj"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True, "rms_norm_eps": 1.5625e-07}
    return renamed(fields, {}, partial_rotary_factor=0.5, **defaults)


GLM = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    weight_names=WeightNames(gate=GATE_UP, up=GATE_UP),
    biases=biases_of_qkv,
    ropes=partial_rope_everywhere,
    interleaved=True,
    config=config,
)
GLM4 = replace(
    GLM,
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    weight_names=replace(
        GLM.weight_names,
        attention_out_norm=f"{LAYER}post_self_attn_layernorm.weight",
        mlp_out_norm=f"{LAYER}post_mlp_layernorm.weight",
    ),
)
