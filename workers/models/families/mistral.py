"""Mistral: as Llama; in models with a sliding window, all layers have it, unless `layer_types` says otherwise."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from .family import SLIDING, Family, need

GROWTH = "llama_4_scaling_beta"  # among the rotary parameters of Ministral 3


def config(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(parameters := fields.get(name), dict):
            need("Mistral", parameters, **{GROWTH: 0})
    return fields


def sliding_window_everywhere(config: HFConfig) -> tuple[int, ...]:
    kinds = config.layer_types or [SLIDING] * config.num_hidden_layers
    return tuple((config.sliding_window or 0) if kind == SLIDING else 0 for kind in kinds)


MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    sliding_windows=sliding_window_everywhere,
    config=config,
)
