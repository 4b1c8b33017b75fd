"""Granite MoE with a shared expert in all layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import WeightNames
from . import granitemoe
from .family import renamed

INTO = "model.layers.{}.shared_mlp.input_linear"  # gate and up
DOWN = "model.layers.{}.shared_mlp.output_linear"
NAMES = replace(granitemoe.NAMES, shared_gate=INTO, shared_up=INTO, shared_down=DOWN)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return granitemoe.config(renamed(fields, {"shared_intermediate_size": "shared_expert_intermediate_size"}))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    shared_size = config.shared_expert_intermediate_size
    return tuple(each and replace(each, shared_size=shared_size) for each in granitemoe.experts(config))


GRANITE_MOE_SHARED = replace(
    granitemoe.GRANITE_MOE,
    name="granitemoeshared",
    architectures=("GraniteMoeSharedForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    config=config,
    experts=experts,
)
