"""OLMo 1: as Llama, with layer norms that have no weights; some models clip queries, keys and values."""

from typing import Any

from .family import Family, biases_of_attention


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"rms_norm_eps": 1e-5}


OLMO = Family("olmo", ("OlmoForCausalLM",), biases=biases_of_attention, norm="plain_layer", config=config)
