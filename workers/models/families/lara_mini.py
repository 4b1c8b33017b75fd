"""Lara mini: gated delta nets as in Qwen3.5, windows, and full attention without rotation, in turn; experts in all."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ...geometry.recurrent.recurrent import Recurrent
from ...geometry.rope_scaling import RopeScaling
from ..names.recurrent_names import GATED_DELTA_NAMES
from ..names.weight_names import WeightNames
from .expert_layers import in_all_layers
from .family import (
    FULL,
    MAX_LAYERS,
    SLIDING,
    Family,
    biases_of_attention,
    layer_kinds,
    need,
    renamed,
    windows_by_pattern,
)
from .gated_delta_layers import gated_delta_layer, in_linear_layers
from .mamba2_layers import LINEAR
from .rope_config import rope_of

LAYER = "model.layers.{}.linear_attn."
DELTA = replace(GATED_DELTA_NAMES, of_all=f"{LAYER}in_proj", norm=f"{LAYER}out_norm.weight")
PATTERN = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "tie_word_embeddings": True,
    "sliding_window": 512,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """All layers have experts, so files have no `intermediate_size`."""
    need("Lara mini", fields, hidden_act="silu")
    found = renamed(fields, {}, **DEFAULTS)
    found["intermediate_size"] = found["moe_intermediate_size"]
    layers = fields.get("num_hidden_layers")
    if fields.get("layer_types") is None and isinstance(layers, int):
        found["layer_types"] = [PATTERN[at % len(PATTERN)] for at in range(min(layers, MAX_LAYERS))]
    return found


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """Only layers with windows are rotated."""
    rotated = rope_of(config)
    return tuple(rotated if kind == SLIDING else RopeScaling("none") for kind in layer_kinds(config))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, renormalises=config.norm_topk_prob)
    return in_all_layers(config, replace(found, shared_size=config.shared_expert_intermediate_size))


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    return in_linear_layers(gated_delta_layer(config, config.rms_norm_eps), config)


LARA_MINI = Family(
    name="lara_mini",
    architectures=("LaraMiniForCausalLM",),
    weight_names=WeightNames(gated_delta=DELTA),
    biases=biases_of_attention,
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    layer_types=(FULL, SLIDING, LINEAR),
    config=config,
    experts=experts,
    recurrent=recurrent,
)
