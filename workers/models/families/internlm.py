"""InternLM 1: Llama with one field for the biases of attention."""

from typing import Any

from .family import Family, biases_of_attention, need, renamed


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """`rotary` of InternLM is the default rotation, or one that is stretched only beyond the training length."""
    found = renamed(fields, {"bias": "attention_bias"}, attention_bias=True)
    if isinstance(rotary := fields.get("rotary"), dict):
        if rotary.get("type") != "dynamic":
            need("InternLM", rotary, type="origin")
        found["rope_theta"] = rotary.get("base", found.get("rope_theta"))
    return found


INTERNLM = Family("internlm", ("InternLMForCausalLM",), biases=biases_of_attention, config=config)
