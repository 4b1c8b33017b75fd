"""Ministral 3: as Mistral, with queries that grow with the position, beyond the original context."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling, Temperature
from .family import positive, renamed
from .mistral import GROWTH, MISTRAL
from .rope_config import rope_of

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    GROWTH: 0.1,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {}, head_dim=128, num_key_value_heads=8, rms_norm_eps=1e-5)
    return found if found.keys() & {"rope_scaling", "rope_parameters"} else found | {"rope_parameters": YARN}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    rope, parameters = rope_of(config), config.rope_parameters or config.rope_scaling or {}
    if parameters.get(GROWTH) not in (None, 0):
        growth = positive(parameters, GROWTH)
        rope = replace(rope, temperature=Temperature(growth, rope.original_max_positions, first=0))
    return (rope,) * config.num_hidden_layers


MINISTRAL3 = replace(MISTRAL, name="ministral3", architectures=("Ministral3ForCausalLM",), config=config, ropes=ropes)
