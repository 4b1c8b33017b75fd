"""Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts; the former with a gated shared expert."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_chosen_layers
from .family import biases_of_qkv, renamed
from .qwen2 import QWEN2
from .qwen3 import QWEN3


def config2(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    return renamed(fields, {"qkv_bias": "attention_bias"}, attention_bias=True, **SHARED, **defaults)


def config3(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"num_local_experts": "num_experts"}
    return renamed(fields, names, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes, shared = (config.num_experts, config.num_experts_per_tok), config.shared_expert_intermediate_size
    found = Experts(*sizes, config.moe_intermediate_size, renormalises=config.norm_topk_prob)
    return in_chosen_layers(config, replace(found, shared_size=shared, shared_as="gated" if shared > 0 else "sum"))


SHARED = {"shared_expert_intermediate_size": 5632}
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    config=config2,
    biases=biases_of_qkv,
    experts=experts,
)
QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    weight_names=WeightNames(experts=ExpertNames(are_transposed=None)),  # in published files of Qwen3-VL they are
    config=config3,
    experts=experts,
)
