"""Laguna: as Mellum 2, with QK norm, a softplus gate of attention, and numbers of query heads that differ by layer.

Experts are chosen by corrected sigmoids, beside a shared one.
"""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ...geometry.model_options import QKNorm
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import dense_layers, in_chosen_layers
from .family import FULL, SLIDING, Family, biases_of_attention, layer_kinds, need, renamed, windows_by_pattern
from .rope_config import ropes_of_kinds

ROPES = {FULL: {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, SLIDING: {"rope_theta": 1e4}}
DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "sliding_window": 512,
    "rope_parameters": ROPES,
}
GATES = {True: True, "per-head": True, "per-element": False}  # whether a gate is of a whole head
ATTENTION = "model.layers.{}.self_attn."
EXPERTS = ExpertNames(correction="model.layers.{}.mlp.experts.e_score_correction_bias")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Laguna", fields, moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0)
    gating = True if (stated := fields.get("gating")) is None else stated
    if not isinstance(gating, bool | str) or gating not in GATES:
        raise ConfigError(f"config.json: gating={gating!r} is not supported for Laguna; use one of {[*GATES]}")
    found = renamed(fields, {"moe_routed_scaling_factor": "routed_scaling_factor"}, **DEFAULTS)
    return found | dense_layers(fields) | {"has_gates_of_heads": GATES[gating]}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    whole = {"partial_rotary_factor": 1.0}
    return ropes_of_kinds(config, layer_kinds(config), allow_partial=True, defaults=whole)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, "sigmoid", renormalises=True, scale=config.routed_scaling_factor, has_correction=True)
    return in_chosen_layers(config, replace(found, shared_size=config.shared_expert_intermediate_size))


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, weight_names=replace(family.weight_names, has_gates_of_heads=config.has_gates_of_heads))


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    if (counts := config.num_attention_heads_per_layer) is None:
        return geometry
    if len(counts) != geometry.num_layers:
        raise ConfigError(
            f"config.json: num_attention_heads_per_layer has {len(counts)} numbers for {geometry.num_layers} layers"
        )
    if uneven := [count for count in counts if count % geometry.num_kv_heads]:
        raise ConfigError(
            f"config.json: {uneven[0]} attention heads cannot share {geometry.num_kv_heads} KV heads evenly"
        )
    if len(set(counts)) == 1:
        return replace(geometry, num_heads=counts[0])
    return geometry.with_sizes_of_layers(num_heads=counts)


LAGUNA = Family(
    name="laguna",
    architectures=("LagunaForCausalLM",),
    weight_names=WeightNames(attention_gate=f"{ATTENTION}g_proj", has_gates_of_heads=True, experts=EXPERTS),
    biases=biases_of_attention,
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    attention_gate="softplus",
    experts=experts,
    config=config,
    adapted=adapted,
    refined=refined,
)
