"""openPangu: Llama with other fields for biases (Embedded), and DeepSeek-V3 with post-norms (Ultra MoE)."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from . import glm4_moe
from .deepseek import COUNTS, DEEPSEEK_V3, LATENT
from .family import Family, need, renamed
from .latent_sizes import sized

LAYER = "model.layers.{}."
DEFAULTS = {"norm_topk_prob": True, "first_k_dense_replace": 3, "n_shared_experts": 1, "routed_scaling_factor": 2.5}
POST_NORMS = WeightNames(
    attention_out_norm=f"{LAYER}post_attention_layernorm.weight",
    mlp_norm=f"{LAYER}pre_mlp_layernorm.weight",
    mlp_out_norm=f"{LAYER}post_mlp_layernorm.weight",
    experts=glm4_moe.NAMES,
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("openPangu Embedded", fields, is_causal=True, sandwich_norm=False, param_sink_number=0)
    of_output = fields.get("attention_bias") or fields.get("bias") or False
    of_qkv = fields.get("qkv_bias")
    return renamed(fields, {}) | {
        "attention_bias": of_output if of_qkv is None else of_qkv,
        "attention_out_bias": of_output,
    }


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_out_bias, mlp=config.mlp_bias)


def config_of_ultra(fields: dict[str, Any]) -> dict[str, Any]:
    need("openPangu Ultra MoE", fields, sandwich_norm=True, hidden_act="silu", rope_scaling=None)
    need("openPangu Ultra MoE", fields, param_sink_number=0, router_enable_expert_bias=False)
    return sized(renamed(fields, COUNTS, **DEFAULTS), fields, *LATENT)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    corrected = glm4_moe.experts(config)
    return tuple(each and replace(each, groups=1, top_groups=1, has_correction=False) for each in corrected)


PANGU = Family("pangu", ("PanguEmbeddedForCausalLM",), biases=biases, config=config)
PANGU_ULTRA = replace(
    DEEPSEEK_V3,
    name="pangu_ultra_moe",
    architectures=("PanguUltraMoEForCausalLM",),
    weight_names=POST_NORMS,
    config=config_of_ultra,
    experts=experts,
    mtp=None,
)
