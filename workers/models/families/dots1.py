"""dots.llm1: as Qwen3, with experts as in GLM-4.5; the first layers are dense."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from . import glm4_moe
from .family import need, renamed
from .qwen3 import QWEN3

COUNTS = {"n_routed_experts": "num_experts"}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("scoring_func") != "noaux_tc":  # what published files call it
        need("dots.llm1", fields, scoring_func="sigmoid")
    need("dots.llm1", fields, moe_layer_freq=1, topk_method="noaux_tc")
    windows = {"use_sliding_window": True, "sliding_window": fields.get("sliding_window", 4096)}
    return renamed(fields, COUNTS, max_window_layers=62) | windows


DOTS1 = replace(
    QWEN3,
    name="dots1",
    architectures=("Dots1ForCausalLM",),
    weight_names=WeightNames(experts=glm4_moe.NAMES),
    default_head_dim=None,
    config=config,
    experts=glm4_moe.experts,
)
