"""StableLM: as Llama, with layer norms and partial rotation; some models have parallel layers, or QK norms."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from .family import Family, biases_of_qkv, partial_rope_everywhere, renamed, with_qk_norm

FIELDS = {
    "norm_eps": "rms_norm_eps",  # this and rope_pct: of the first files
    "layer_norm_eps": "rms_norm_eps",
    "rope_pct": "partial_rotary_factor",
    "use_qkv_bias": "attention_bias",
    "qk_layernorm": "qk_norm",
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, FIELDS, rms_norm_eps=1e-5, partial_rotary_factor=0.25)


def adapted(family: Family, config: HFConfig) -> Family:
    family = with_qk_norm(family, config)
    if not config.use_parallel_residual:
        return family
    return replace(family, is_parallel=True, weight_names=replace(family.weight_names, mlp_norm=""))


ATTENTION = "model.layers.{}.self_attn."
STABLELM = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    weight_names=WeightNames(
        query_norm=f"{ATTENTION}q_layernorm.norms.{{}}.weight", key_norm=f"{ATTENTION}k_layernorm.norms.{{}}.weight"
    ),
    biases=biases_of_qkv,
    norm="layer",
    qk_norm=QKNorm(kind="unbiased_layer", has_weights_per_head=True),
    ropes=partial_rope_everywhere,
    config=config,
    adapted=adapted,
)
