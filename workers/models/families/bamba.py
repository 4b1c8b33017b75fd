"""Bamba: most layers are Mamba 2, the others attention whose heads are half rotated."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ..names.weight_names import WeightNames
from .family import Family, need, partial_rope_everywhere, renamed
from .llama import biases
from .mamba2_layers import mamba2_layer, time_steps

LAYER = "model.layers.{}."
NAMES = WeightNames(
    final_norm="model.final_layernorm.weight",
    mlp_norm=f"{LAYER}pre_ff_layernorm.weight",
    gate=f"{LAYER}feed_forward.gate_proj",
    up=f"{LAYER}feed_forward.up_proj",
    down=f"{LAYER}feed_forward.down_proj",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Bamba", fields, hidden_act="silu", partial_rotary_factor=0.5)
    found = renamed(time_steps(fields), {"attn_rotary_emb": "rotary_dim"}, rms_norm_eps=1e-5, num_key_value_heads=8)
    return found | {"partial_rotary_factor": 0.5, "layer_types": None}


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layer, attention = mamba2_layer(config), config.attn_layer_indices or ()
    return tuple(None if index in attention else layer for index in range(config.num_hidden_layers))


BAMBA = Family(
    name="bamba",
    architectures=("BambaForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    ropes=partial_rope_everywhere,
    config=config,
    recurrent=recurrent,
)
