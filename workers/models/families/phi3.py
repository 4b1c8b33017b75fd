"""Phi-3 and Phi-4: as Llama, but one matrix of q, k and v, and one of gate and up; all layers may have a window."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, partial_rope_everywhere
from .mistral import sliding_window_everywhere

LAYER = "model.layers.{}."
QKV, GATE_UP = f"{LAYER}self_attn.qkv_proj", f"{LAYER}mlp.gate_up_proj"
NAMES = WeightNames(query=QKV, key=QKV, value=QKV, gate=GATE_UP, up=GATE_UP)
LONG = ("su", "yarn", "longrope")  # the names of longrope in different releases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    scaling = fields.get("rope_scaling")
    if not isinstance(scaling, dict) or (scaling.get("rope_type") or scaling.get("type")) not in LONG:
        return fields
    return fields | {"rope_scaling": scaling | {"rope_type": "longrope"}}


PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    weight_names=NAMES,
    sliding_windows=sliding_window_everywhere,
    ropes=partial_rope_everywhere,
    config=config,
)
