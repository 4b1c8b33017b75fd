"""Orion 14B: as Llama, with layer norms."""

from typing import Any

from .family import Family, need, renamed


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Orion", fields, hidden_act="silu", attention_bias=False)
    return renamed(fields, {}, rms_norm_eps=1e-5)


ORION = Family(name="orion", architectures=("OrionForCausalLM",), norm="layer", config=config)
