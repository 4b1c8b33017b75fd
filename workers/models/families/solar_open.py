"""Solar Open: as GLM-4.5, with experts in all layers, and whole heads rotated."""

from dataclasses import replace
from typing import Any

from . import glm4_moe
from .family import need

SIZES = {"num_key_value_heads": 8, "head_dim": 128, "moe_intermediate_size": 1280}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Solar Open", fields, use_qk_norm=False, first_k_dense_replace=0)
    stated = {name: value for name, value in fields.items() if value is not None}
    common = {"first_k_dense_replace": 0, "partial_rotary_factor": 1.0, "intermediate_size": 10240}  # the last: unused
    return glm4_moe.config(common | SIZES | {"rope_theta": 1e6} | stated)


SOLAR_OPEN = replace(glm4_moe.GLM4_MOE, name="solar_open", architectures=("SolarOpenForCausalLM",), config=config)
