"""DeepSeek-V2, V2-Lite, V3 and R1: latent attention; experts within groups, shared experts, dense first layers."""

import math
from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.attention_options import Latent
from ...checkpoint.experts import Experts
from ...checkpoint.geometry import Multipliers
from ...checkpoint.hf_config import HFConfig, rope_of
from .expert_layers import in_chosen_layers
from .family import Family, WeightNames, need, renamed
from .glm4_moe import NAMES

MAX_CACHED = 1024  # elements of a vector in the cache: what attention kernels are written for
SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
DEFAULTS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def config_v2(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeek-V2", fields, attention_bias=False, mlp_bias=False, norm_topk_prob=False, moe_layer_freq=1)
    need("DeepSeek-V2", fields, scoring_func="softmax")
    if (method := fields.get("topk_method", "greedy")) not in ("greedy", "group_limited_greedy"):
        raise ConfigError(
            f"config.json: topk_method={method!r} is not supported for DeepSeek-V2; greedy and group_limited_greedy are"
        )
    groups = {} if method == "group_limited_greedy" else {"n_group": 1, "topk_group": 1}
    found = renamed(
        fields, {"n_routed_experts": "num_experts"}, num_experts=64, n_shared_experts=2, moe_intermediate_size=1407
    )
    return _sizes(found, fields) | groups


def config_v3(fields: dict[str, Any]) -> dict[str, Any]:
    need("DeepSeek-V3", fields, attention_bias=False, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    counts = {"num_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4}
    more = {"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5}
    found = renamed(fields, {"n_routed_experts": "num_experts"}, norm_topk_prob=True, **counts, **more)
    return _sizes(found, fields)


def _sizes(found: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Those of latent attention; q_lora_rank is 1536 if it is absent, and null if queries are projected directly."""
    rank = fields.get("q_lora_rank", 1536)
    return DEFAULTS | found | {"q_lora_rank": rank, "head_dim": None, "num_key_value_heads": 1}


def latent(config: HFConfig) -> Latent:
    for name in (*SIZES, *(("q_lora_rank",) if config.q_lora_rank is not None else ())):
        if (value := getattr(config, name)) < 1:
            raise ConfigError(
                f"config.json: {name}={value} must be at least 1" + (", or null" if name == "q_lora_rank" else "")
            )
    sizes = Latent(config.q_lora_rank or 0, *(getattr(config, name) for name in SIZES))
    if sizes.rope_dim % 2:
        raise ConfigError(f"config.json: qk_rope_head_dim={sizes.rope_dim} must be even, to be rotated in pairs")
    if sizes.cached_dim > MAX_CACHED:
        raise ConfigError(
            f"config.json: kv_lora_rank={sizes.kv_rank} and qk_rope_head_dim={sizes.rope_dim} must be at most "
            f"{MAX_CACHED} together"
        )
    return sizes


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    """The scale of scores; yarn multiplies it by the square of a factor that grows with the context."""
    rope, scale = rope_of(config), 1.0 / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    if rope.kind != "default" and rope.mscale_all_dim and rope.factor > 1:
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
    return Multipliers(scores=scale)


def experts_v2(config: HFConfig) -> tuple[Experts | None, ...]:
    return in_chosen_layers(config, _experts(config))


def experts_v3(config: HFConfig) -> tuple[Experts | None, ...]:
    found = replace(_experts(config), score="sigmoid", renormalises=config.norm_topk_prob, has_correction=True)
    return in_chosen_layers(config, found)


def _experts(config: HFConfig) -> Experts:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, scale=config.routed_scaling_factor)
    return replace(
        found, groups=config.n_group, top_groups=config.topk_group, shared_size=size * config.n_shared_experts
    )


def adapted(family: Family, config: HFConfig) -> Family:
    """Layers beyond the last predict several tokens at once; they are not used."""
    beyond = range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_predict_layers)
    unused = replace(family.weight_names, unused_prefixes=tuple(f"model.layers.{layer}." for layer in beyond))
    return replace(family, weight_names=unused, interleaved=config.rope_interleave)


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    config=config_v2,
    multipliers=multipliers,
    adapted=adapted,
    experts=experts_v2,
    latent=latent,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2, name="deepseek_v3", architectures=("DeepseekV3ForCausalLM",), config=config_v3, experts=experts_v3
)
