"""Ling 1.5 and 2, and models like Ling 2: experts and shared ones; fused QKV.

Ling 1.5 chooses experts by a softmax, the others by corrected sigmoids, within groups; those have QK norms, and may
rotate heads in part.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from . import glm4_moe
from .expert_layers import in_chosen_layers
from .family import Family, biases_of_qkv, need, partial_rope_everywhere, renamed

ATTENTION = "model.layers.{}.attention."
QKV = f"{ATTENTION}query_key_value"
NAMES = WeightNames(
    embedding="model.word_embeddings.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{ATTENTION}dense",
    query_norm=f"{ATTENTION}query_layernorm.weight",
    key_norm=f"{ATTENTION}key_layernorm.weight",
    experts=replace(glm4_moe.NAMES, correction="model.layers.{}.mlp.gate.expert_bias"),
)
FIELDS = {
    "num_shared_experts": "n_shared_experts",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
    "use_qkv_bias": "attention_bias",
    "use_qk_norm": "qk_norm",
}
NEEDED = {"hidden_act": "silu", "use_bias": False, "use_rmsnorm": True, "norm_head": False, "multi_gate": False}
DEFAULTS = {"norm_topk_prob": True, "first_k_dense_replace": 0, "n_shared_experts": 0}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Ling 1.5", fields, **NEEDED, score_function="softmax", moe_router_enable_expert_bias=False)
    return _config(fields)


def config2(fields: dict[str, Any]) -> dict[str, Any]:
    need("Ling 2", fields, **NEEDED, score_function="sigmoid", moe_router_enable_expert_bias=True)
    return _config(fields)


def config_of_sarvam(fields: dict[str, Any]) -> dict[str, Any]:
    need("Sarvam", fields, **NEEDED, score_function="sigmoid", moe_router_enable_expert_bias=True)
    return _config({"first_k_dense_replace": 1, "num_shared_experts": 1, "routed_scaling_factor": 2.5} | fields)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, **DEFAULTS)
    found.setdefault("shared_expert_intermediate_size", fields.get("moe_intermediate_size"))
    return found | {"head_dim": found.get("head_dim") or None}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    shared = config.n_shared_experts * config.shared_expert_intermediate_size
    found = Experts(*sizes, renormalises=config.norm_topk_prob, scale=config.routed_scaling_factor, shared_size=shared)
    return in_chosen_layers(config, found)


def experts2(config: HFConfig) -> tuple[Experts | None, ...]:
    groups, chosen = config.n_group, config.topk_group
    return tuple(
        each and replace(each, score="sigmoid", has_correction=True, groups=groups, top_groups=chosen)
        for each in experts(config)
    )


BAILING_MOE = Family(
    name="bailing_moe",
    architectures=("BailingMoeForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_qkv,
    qk_norm=QKNorm(),
    ropes=partial_rope_everywhere,
    config=config,
    adapted=glm4_moe.adapted,
    experts=experts,
)
BAILING_MOE_V2 = replace(
    BAILING_MOE,
    name="bailing_moe_v2",
    architectures=("BailingMoeV2ForCausalLM", "Param2MoEForCausalLM"),
    config=config2,
    experts=experts2,
)
SARVAM_MOE = replace(
    BAILING_MOE_V2,
    name="sarvam_moe",
    architectures=("SarvamMoEForCausalLM",),
    config=config_of_sarvam,
)
