"""OLMo 1: as Llama, with layer norms that have no weights; some models clip queries, keys and values."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from .family import Biases, Family


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"rms_norm_eps": 1e-5}


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias)


OLMO = Family("olmo", ("OlmoForCausalLM",), biases=biases, norm="plain_layer", config=config)
