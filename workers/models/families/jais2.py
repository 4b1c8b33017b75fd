"""Jais 2: as Llama, with layer norms, an ungated feed-forward with squared ReLU, and biases."""

from typing import Any

from .family import Family, renamed
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True}
    return renamed(fields, {"layer_norm_eps": "rms_norm_eps"}, **defaults)


JAIS2 = Family(
    name="jais2",
    architectures=("Jais2ForCausalLM",),
    biases=biases,
    norm="layer",
    is_gated=False,
    config=config,
)
