"""Bamba: most layers are Mamba 2, the others attention whose heads are half rotated."""

from typing import Any

from .family import FULL, Family, WeightNames, need, partial_rope_everywhere, renamed
from .llama import biases
from .mamba2_layers import LINEAR, by_layer_type, time_steps

LAYER = "model.layers.{}."
NAMES = WeightNames(
    final_norm="model.final_layernorm.weight",
    mlp_norm=f"{LAYER}pre_ff_layernorm.weight",
    gate=f"{LAYER}feed_forward.gate_proj",
    up=f"{LAYER}feed_forward.up_proj",
    down=f"{LAYER}feed_forward.down_proj",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Bamba", fields, hidden_act="silu")
    found = renamed(time_steps(fields), {}, rms_norm_eps=1e-5, partial_rotary_factor=0.5, num_key_value_heads=8)
    attention = found.get("attn_layer_indices", [])
    layers = range(found.get("num_hidden_layers", 0))
    return found | {"layer_types": [FULL if layer in attention else LINEAR for layer in layers]}


BAMBA = Family(
    name="bamba",
    architectures=("BambaForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    ropes=partial_rope_everywhere,
    layer_types=(FULL, LINEAR),
    config=config,
    recurrent=by_layer_type,
)
