"""Kolibri 1: pre- and post-norms, QK norm, windows whose layers alone are rotated, and experts beside a shared one.

Experts are chosen by corrected logits and weighed by sigmoids.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from . import glm4_moe
from .expert_layers import in_all_layers
from .family import Family, need, positive, renamed, windows_by_pattern
from .flint import ropes

LAYER = "model.layers.{}."
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 384,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "sliding_window": 513,
    "sliding_window_pattern": 5,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Kolibri 1", fields, attention_bias=False, mlp_only_layers=[], decoder_sparse_step=1)
    found = renamed(fields, {"num_local_experts": "num_experts"}, **DEFAULTS)
    positive(found, "sliding_window")
    return {"intermediate_size": found["moe_intermediate_size"]} | found


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    found = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        "sigmoid_of_chosen",
        renormalises=config.norm_topk_prob,
        has_correction=True,
        shared_size=config.shared_expert_intermediate_size,
    )
    return in_all_layers(config, found)


KOLIBRI1 = Family(
    name="kolibri1",
    architectures=("Kolibri1ForCausalLM",),
    weight_names=WeightNames(
        attention_out_norm=f"{LAYER}post_attn_norm.weight",
        mlp_out_norm=f"{LAYER}post_ffn_norm.weight",
        experts=replace(glm4_moe.NAMES, correction=f"{LAYER}moe.router.expert_bias"),
    ),
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    experts=experts,
    config=config,
)
