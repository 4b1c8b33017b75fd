"""Ministral: Mistral, with a window in each layer that `layer_types` names so, or else in all."""

from dataclasses import replace
from typing import Any

from . import mistral


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return mistral.config({"num_key_value_heads": 8, "sliding_window": 4096} | fields)


MINISTRAL = replace(mistral.MISTRAL, name="ministral", architectures=("MinistralForCausalLM",), config=config)
