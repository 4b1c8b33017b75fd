"""Hunyuan 3: attention as in Qwen3; experts chosen by corrected sigmoids, and shared ones; the first layer is dense."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import dense_layers, in_chosen_layers
from .family import Family, biases_of_attention, need, renamed
from .glm4_moe import without_later_layers

LAYER = "model.layers.{}.mlp."
SHARED = f"{LAYER}shared_mlp."
NAMES = ExpertNames(
    router=f"{LAYER}router.gate",
    correction=f"{LAYER}expert_bias",
    shared_gate=f"{SHARED}gate_proj",
    shared_up=f"{SHARED}up_proj",
    shared_down=f"{SHARED}down_proj",
)
FIELDS = {
    "num_local_experts": "num_experts",
    "num_shared_experts": "n_shared_experts",
    "router_scaling_factor": "routed_scaling_factor",
}
DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 11_158_840.0,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 2.826,
    "first_k_dense_replace": 1,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Hunyuan 3", fields, mlp_bias=False, qk_norm=True, route_norm=True)
    need("Hunyuan 3", fields, moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True)
    return renamed(fields, FIELDS, **DEFAULTS) | dense_layers(fields)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, "sigmoid", renormalises=True)
    scaled = replace(found, scale=config.routed_scaling_factor, has_correction=True)
    return in_chosen_layers(config, replace(scaled, shared_size=size * config.n_shared_experts))


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, weight_names=without_later_layers(family.weight_names, config))


HY_V3 = Family(
    name="hy_v3",
    architectures=("HYV3ForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    biases=biases_of_attention,
    qk_norm=QKNorm(),
    config=config,
    adapted=adapted,
    experts=experts,
)
