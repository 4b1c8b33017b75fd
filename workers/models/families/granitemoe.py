"""Granite MoE: Granite with experts in all layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from . import granite
from .expert_layers import in_all_layers
from .family import renamed

LAYER = "model.layers.{}.block_sparse_moe."
NAMES = ExpertNames(
    router=f"{LAYER}router.layer",
    stacked_gate_up=f"{LAYER}input_linear.weight",
    stacked_down=f"{LAYER}output_linear.weight",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(granite.config(fields), {"num_local_experts": "num_experts"}, num_experts=8, num_experts_per_tok=2)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, "softmax_of_chosen"))


GRANITE_MOE = replace(
    granite.GRANITE,
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    config=config,
    experts=experts,
)
