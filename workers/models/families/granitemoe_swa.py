"""Granite MoE with windows: the attention of Granite with windows, and experts, optionally with a shared one."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from . import granitemoe
from .family import full_in_every_fourth, need, renamed
from .granite_swa import GRANITE_SWA, SINKS

LAYER = "model.layers.{}."
INTO = f"{LAYER}shared_mlp.input_linear"  # gate and up
NAMES = ExpertNames(
    router=f"{LAYER}block_sparse_moe.router",
    stacked_gate_up=f"{LAYER}block_sparse_moe.experts.gate_up_proj",
    stacked_down=f"{LAYER}block_sparse_moe.experts.down_proj",
    shared_gate=INTO,
    shared_up=INTO,
    shared_down=f"{LAYER}shared_mlp.output_linear",
)
FIELDS = {"num_local_experts": "num_experts", "shared_intermediate_size": "shared_expert_intermediate_size"}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Granite MoE with windows", fields, attention_sinks=True)
    found = renamed({"sliding_window": 128} | fields, FIELDS, num_experts=8, num_experts_per_tok=2)
    return full_in_every_fourth(found)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    shared_size = config.shared_expert_intermediate_size
    return tuple(each and replace(each, shared_size=shared_size) for each in granitemoe.experts(config))


GRANITE_MOE_SWA = replace(
    GRANITE_SWA,
    name="granitemoe_swa",
    architectures=("GraniteMoeSWAForCausalLM",),
    weight_names=WeightNames(experts=NAMES, sinks=SINKS),
    config=config,
    experts=experts,
)
