"""Mistral: as Llama, but every layer slides when the model has a window."""

from ...checkpoint.hf_config import HFConfig
from .family import Family


def every_layer_slides(config: HFConfig) -> tuple[int, ...]:
    return (config.sliding_window or 0,) * config.num_hidden_layers


MISTRAL = Family(name="mistral", architectures=("MistralForCausalLM",), sliding_windows=every_layer_slides)
