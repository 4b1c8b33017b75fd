"""Youtu-LLM: the latent attention of DeepSeek-V3 and a dense feed-forward in all layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from .deepseek import DEEPSEEK_V2, LATENT
from .family import Family, need, none_in_any_layer
from .latent_sizes import sized


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Youtu-LLM", fields, attention_bias=False, mlp_bias=False, index_topk=None, n_routed_experts=None)
    return sized({"tie_word_embeddings": True} | fields, fields, *LATENT)


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, interleaved=config.rope_interleave)


YOUTU = replace(
    DEEPSEEK_V2,
    name="youtu",
    architectures=("YoutuForCausalLM",),
    config=config,
    adapted=adapted,
    experts=none_in_any_layer,
)
