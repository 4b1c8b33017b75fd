"""DeepSeek-V2, V2-Lite, V3 and R1: latent attention; experts within groups, shared experts, dense first layers."""

from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import Multipliers
from ..names.mtp_names import MTP_NAMES
from ..names.weight_names import WeightNames
from . import glm4_moe
from .expert_layers import in_chosen_layers
from .family import Family, need, renamed
from .latent_sizes import latent, scale_of_scores, sized

LATENT = (1536, 512, 128, 64, 128)  # the defaults of `sized`
COUNTS = {"n_routed_experts": "num_experts"}


def config_v2(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeek-V2", fields, attention_bias=False, mlp_bias=False, norm_topk_prob=False, moe_layer_freq=1)
    need("DeepSeek-V2", fields, scoring_func="softmax", index_topk=None, llama_4_scaling=None)
    if (method := fields.get("topk_method", "greedy")) not in ("greedy", "group_limited_greedy"):
        raise ConfigError(
            f"config.json: topk_method={method!r} is not supported for DeepSeek-V2; greedy and group_limited_greedy are"
        )
    groups = {} if method == "group_limited_greedy" else {"n_group": 1, "topk_group": 1}
    found = renamed(fields, COUNTS, num_experts=64, n_shared_experts=2, moe_intermediate_size=1407)
    return sized(found, fields, *LATENT) | groups


def config_v3(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeek-V3", fields, attention_bias=False, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    need("DeepSeek-V3", fields, index_topk=None, llama_4_scaling=None)  # of V3.2 and of Mistral Large 3
    counts = {"num_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4}
    more = {"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5}
    return sized(renamed(fields, COUNTS, norm_topk_prob=True, **counts, **more), fields, *LATENT)


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(scores=scale_of_scores(config))


def experts_v2(config: HFConfig) -> tuple[Experts | None, ...]:
    size, groups, top_groups = config.moe_intermediate_size, config.n_group, config.topk_group
    found = Experts(config.num_experts, config.num_experts_per_tok, size, renormalises=config.norm_topk_prob)
    found = replace(found, scale=config.routed_scaling_factor, shared_size=size * config.n_shared_experts)
    whole = replace(found, groups=groups, top_groups=top_groups)
    return in_chosen_layers(config, whole)


def adapted(family: Family, config: HFConfig) -> Family:
    names = glm4_moe.without_later_layers(family.weight_names, config)
    return replace(family, weight_names=names, interleaved=config.rope_interleave)


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    weight_names=WeightNames(experts=glm4_moe.NAMES),
    config=config_v2,
    multipliers=multipliers,
    adapted=adapted,
    experts=experts_v2,
    latent=latent,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    config=config_v3,
    experts=glm4_moe.experts,
    mtp=MTP_NAMES,
)
