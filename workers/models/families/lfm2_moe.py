"""LFM2 with experts, chosen by corrected sigmoids; the first layers are dense."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames
from . import lfm2
from .expert_layers import in_chosen_layers
from .family import renamed

LAYER = "model.layers.{}.feed_forward."
NAMES = ExpertNames(
    router=f"{LAYER}gate",
    correction=f"{LAYER}expert_bias",
    gate=f"{LAYER}experts.{{}}.w1",
    up=f"{LAYER}experts.{{}}.w3",
    down=f"{LAYER}experts.{{}}.w2",
    stacked_gate_up=f"{LAYER}experts.gate_up_proj",
    stacked_down=f"{LAYER}experts.down_proj",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    sizes = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "first_k_dense_replace": 2}
    own = {"intermediate_size": 7168, "norm_topk_prob": True, "block_auto_adjust_ff_dim": False}
    return lfm2.config(renamed(fields, {"num_dense_layers": "first_k_dense_replace"}, **sizes, **own))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    found = Experts(config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, "sigmoid")
    scaled = replace(found, renormalises=config.norm_topk_prob, scale=config.routed_scaling_factor)
    return in_chosen_layers(config, replace(scaled, has_correction=config.use_expert_bias))


LFM2_MOE = replace(
    lfm2.LFM2,
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    weight_names=replace(lfm2.NAMES, experts=NAMES),
    config=config,
    experts=experts,
)
