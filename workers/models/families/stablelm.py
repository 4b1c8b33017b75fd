"""StableLM: as Llama, with layer norms and partial rotation; some models have parallel layers with one norm."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from .family import Biases, Family, need, partial_rope_everywhere, renamed

FIELDS = {"layer_norm_eps": "rms_norm_eps", "use_qkv_bias": "attention_bias"}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("StableLM", fields, qk_layernorm=False)
    return renamed(fields, FIELDS, rms_norm_eps=1e-5, partial_rotary_factor=0.25)


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias)


def adapted(family: Family, config: HFConfig) -> Family:
    if not config.use_parallel_residual:
        return family
    return replace(family, is_parallel=True, weight_names=replace(family.weight_names, mlp_norm=""))


STABLELM = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    biases=biases,
    norm="layer",
    ropes=partial_rope_everywhere,
    config=config,
    adapted=adapted,
)
