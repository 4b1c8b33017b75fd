"""Granite 4: as Granite, most layers being Mamba 2, with a shared expert or only a dense feed-forward in all layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .expert_layers import in_all_layers
from .family import FULL, need, no_ropes, renamed, rope_everywhere
from .granite import GRANITE
from .granitemoe import NAMES as EXPERTS
from .mamba2_layers import LINEAR, OLDER, by_layer_type, time_steps

SHARED = "model.layers.{}.shared_mlp."
INTO, DOWN = f"{SHARED}input_linear", f"{SHARED}output_linear"
NAMES = WeightNames(
    gate=INTO,
    up=INTO,
    down=DOWN,
    experts=replace(EXPERTS, shared_gate=INTO, shared_up=INTO, shared_down=DOWN),
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Granite 4", fields, hidden_act="silu", normalization_function="rmsnorm")
    defaults = {"num_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024}
    found = renamed(time_steps(fields), {"num_local_experts": "num_experts"}, **defaults)
    if isinstance(kinds := found.get("layer_types"), list):
        found["layer_types"] = [OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    # A dense feed-forward has the shared expert's names and size.
    found["moe_intermediate_size"] = found.get("intermediate_size", 0)
    found["intermediate_size"] = found["shared_expert_intermediate_size"] = found["shared_intermediate_size"]
    return found | {
        "alibi": False,
        "partial_rotary_factor": 1.0 if found.get("position_embedding_type") == "rope" else 0.0,
    }


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return rope_everywhere(config) if config.partial_rotary_factor else no_ropes(config)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    if not config.num_experts:
        return ()
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    return in_all_layers(config, Experts(*sizes, "softmax_of_chosen", shared_size=config.intermediate_size))


GRANITE_MOE_HYBRID = replace(
    GRANITE,
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    weight_names=NAMES,
    layer_types=(FULL, LINEAR),
    config=config,
    ropes=ropes,
    experts=experts,
    recurrent=by_layer_type,
)
