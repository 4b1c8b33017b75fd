"""BitNet: as Llama, with squared ReLU, and a norm before the last projection of attention and of the feed-forward.

That weights are ternary and activations int8 is how a checkpoint is quantized: quantization/bitnet.py.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention, renamed

LAYER = "model.layers.{}."


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {}, hidden_act="relu2", rms_norm_eps=1e-5, rope_theta=500000.0)
    heads = found.get("num_attention_heads") if "num_key_value_heads" in fields else 5  # null: as many as heads
    return {"num_key_value_heads": heads} | found


def refined(_: HFConfig, geometry: Geometry) -> Geometry:
    return replace(geometry, has_inner_norms=True)


BITNET = Family(
    name="bitnet",
    architectures=("BitNetForCausalLM",),
    weight_names=WeightNames(
        output_norm=f"{LAYER}self_attn.attn_sub_norm.weight",
        down_norm=f"{LAYER}mlp.ffn_sub_norm.weight",
    ),
    biases=biases_of_attention,
    config=config,
    refined=refined,
)
