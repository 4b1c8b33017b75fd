"""DeepSeekMoE: as Llama, with experts weighed by a softmax over all, and shared ones; the first layers are dense."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import WeightNames
from . import glm4_moe
from .expert_layers import in_chosen_layers
from .family import biases_of_attention, need, renamed
from .llama import LLAMA


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeekMoE", fields, hidden_act="silu", moe_layer_freq=1, scoring_func="softmax")
    return renamed(fields, {"n_routed_experts": "num_experts"}, n_shared_experts=0, first_k_dense_replace=0)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, renormalises=config.norm_topk_prob)
    return in_chosen_layers(config, replace(found, shared_size=size * config.n_shared_experts))


DEEPSEEK_MOE = replace(
    LLAMA,
    name="deepseek",
    architectures=("DeepseekForCausalLM",),
    weight_names=WeightNames(experts=glm4_moe.NAMES),
    biases=biases_of_attention,
    config=config,
    experts=experts,
)
