"""AFMoE (Trinity): gated attention with windows, pre- and post-norms, and experts; the first layers are dense."""

from dataclasses import replace
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import Multipliers, QKNorm
from ..names.weight_names import WeightNames
from . import exaone4, glm4_moe
from .expert_layers import in_chosen_layers
from .family import Family, need, positive, renamed, windows_by_pattern

LAYER = "model.layers.{}."
FIELDS = {
    "global_attn_every_n_layers": "sliding_window_pattern",
    "num_dense_layers": "first_k_dense_replace",
    "num_shared_experts": "n_shared_experts",
    "route_scale": "routed_scaling_factor",
}
DEFAULTS = {
    "head_dim": 128,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "sliding_window": 1024,
    "sliding_window_pattern": 4,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("AFMoE", fields, attention_bias=False, score_func="sigmoid", route_norm=True, n_group=1, topk_group=1)
    need("AFMoE", fields, num_expert_groups=1, num_limited_groups=1)
    found = renamed(fields, FIELDS, **DEFAULTS)
    scale = positive(found, "hidden_size") ** 0.5 if fields.get("mup_enabled") else 1.0
    return found | {"embedding_multiplier": scale}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, "sigmoid", renormalises=True)
    scaled = replace(found, scale=config.routed_scaling_factor, has_correction=True)
    return in_chosen_layers(config, replace(scaled, shared_size=size * config.n_shared_experts))


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(embedding=config.embedding_multiplier)


AFMOE = Family(
    name="afmoe",
    architectures=("AfmoeForCausalLM",),
    weight_names=WeightNames(
        attention_out_norm=f"{LAYER}post_attention_layernorm.weight",
        mlp_norm=f"{LAYER}pre_mlp_layernorm.weight",
        mlp_out_norm=f"{LAYER}post_mlp_layernorm.weight",
        attention_gate=f"{LAYER}self_attn.gate_proj",
        experts=replace(glm4_moe.NAMES, router=f"{LAYER}mlp.router.gate", correction=f"{LAYER}mlp.expert_bias"),
    ),
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=exaone4.ropes,
    multipliers=multipliers,
    config=config,
    experts=experts,
    attention_gate="sigmoid",
)
