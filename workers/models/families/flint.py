"""Flint: as Qwen3 with experts chosen by sigmoids, a shared one, and attention sinks; the first two layers are dense.

Layers with full attention have no rotary embedding.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .expert_layers import in_chosen_layers
from .family import (
    FULL,
    MAX_LAYERS,
    SLIDING,
    Family,
    biases_of_attention,
    layer_kinds,
    positive,
    renamed,
    windows_by_pattern,
)
from .rope_config import rope_of

DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 1024,
    "norm_topk_prob": True,
    "mlp_only_layers": [0, 1],
    "sliding_window": 513,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"num_local_experts": "num_experts"}, **DEFAULTS)
    positive(found, "sliding_window")
    return found | _layer_types(found)


def _layer_types(fields: dict[str, Any]) -> dict[str, Any]:
    """Without a list, the first two layers, every fourth and the last one have full attention."""
    layers = fields.get("num_hidden_layers")
    if fields.get("layer_types") is not None or not isinstance(layers, int):
        return {}
    full = {0, layers - 1, *range(1, min(layers, MAX_LAYERS), 4)}
    return {"layer_types": [FULL if at in full else SLIDING for at in range(min(layers, MAX_LAYERS))]}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return tuple(rope_of(config) if kind == SLIDING else RopeScaling("none") for kind in layer_kinds(config))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, "sigmoid", renormalises=config.norm_topk_prob)
    return in_chosen_layers(config, replace(found, shared_size=config.shared_expert_intermediate_size))


FLINT = Family(
    name="flint",
    architectures=("FlintForCausalLM",),
    weight_names=WeightNames(sinks="model.layers.{}.self_attn.softmax_offset"),
    biases=biases_of_attention,
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    experts=experts,
    config=config,
)
