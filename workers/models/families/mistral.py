"""Mistral: as Llama; in models with a sliding window, all layers have it."""

from ...checkpoint.hf_config import HFConfig
from .family import Family


def sliding_window_everywhere(config: HFConfig) -> tuple[int, ...]:
    return (config.sliding_window or 0,) * config.num_hidden_layers


MISTRAL = Family(name="mistral", architectures=("MistralForCausalLM",), sliding_windows=sliding_window_everywhere)
