"""Nemotron and Minitron: layer norm weights stored minus 1, partial rotation, a feed-forward without a gate."""

from typing import Any

from .family import Family, partial_rope_everywhere, renamed
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
    return renamed(fields, {"norm_eps": "rms_norm_eps"}, **defaults)


NEMOTRON = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    biases=biases,
    norm="layer_less_1",
    is_gated=False,
    ropes=partial_rope_everywhere,
    config=config,
)
