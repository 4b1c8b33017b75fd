"""Persimmon: as GPT-NeoX in turn, with QK norm, half of each head rotated and a squared ReLU."""

from dataclasses import replace
from typing import Any

from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from .family import Family, biases_of_layers, partial_rope_everywhere, renamed, with_qk_norm
from .phi import NAMES as PHI_NAMES


def config(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"layer_norm_eps": "rms_norm_eps", "qk_layernorm": "qk_norm"}
    defaults = {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "qk_norm": True}
    return renamed(fields, names, **defaults) | {"num_key_value_heads": None}


LAYER = "model.layers.{}."
QKV = f"{LAYER}self_attn.query_key_value"
NAMES = replace(
    PHI_NAMES,
    mlp_norm=WeightNames().mlp_norm,
    query=QKV,
    key=QKV,
    value=QKV,
    up=f"{LAYER}mlp.dense_h_to_4h",
    down=f"{LAYER}mlp.dense_4h_to_h",
    are_grouped=True,
)
PERSIMMON = Family(
    name="persimmon",
    architectures=("PersimmonForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_layers,
    norm="layer",
    qk_norm=QKNorm(),
    is_gated=False,
    ropes=partial_rope_everywhere,
    config=config,
    adapted=with_qk_norm,
)
