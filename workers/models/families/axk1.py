"""A.X K1: as DeepSeek-V3, with a norm after experts; files may lack the vector that corrects their scores."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ..names.weight_names import NormNames, WeightNames
from . import deepseek, glm4_moe
from .expert_layers import dense_layers
from .family import Family, need, renamed
from .latent_sizes import sized

LAYER = "model.layers.{}."
OUT_NORM = f"{LAYER}post_mlp_layernorm.weight"
DEFAULTS = {
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("A.X K1", fields, attention_bias=False, moe_layer_freq=1, scoring_func="sigmoid", llama_4_scaling=None)
    return sized(renamed(fields, deepseek.COUNTS, **DEFAULTS) | dense_layers(fields), fields, *deepseek.LATENT)


def adapted(family: Family, config: HFConfig) -> Family:
    """Published files have the norm in dense layers, too, which do not use it."""
    found = deepseek.adapted(family, config)
    dense = [index for index, experts in enumerate(family.experts(config)) if experts is None]
    unused = (*found.weight_names.unused_prefixes, *(OUT_NORM.format(index) for index in dense))
    return replace(found, weight_names=replace(found.weight_names, unused_prefixes=unused))


AXK1 = replace(
    deepseek.DEEPSEEK_V3,
    name="axk1",
    architectures=("AXK1ForCausalLM",),
    weight_names=WeightNames(
        expert_norms=NormNames(
            attention_norm=f"{LAYER}input_layernorm.weight",
            mlp_norm=f"{LAYER}post_attention_layernorm.weight",
            mlp_out_norm=OUT_NORM,
        ),
        experts=replace(glm4_moe.NAMES, may_lack_correction=True),
    ),
    config=config,
    adapted=adapted,
    mtp=None,
)
