"""LFM3: as LFM2, with norms after each part, too, windows in some layers with attention, and a gate for each head."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .family import (
    FULL,
    MAX_LAYERS,
    SLIDING,
    Family,
    biases_of_attention,
    layer_kinds,
    renamed,
    windows_by_pattern,
)
from .lfm2 import CONVOLUTION, LFM2
from .rope_config import ropes_of_kinds

LAYER = "model.layers.{}."
GATE = f"{LAYER}self_attn.gate_proj"
NAMES = WeightNames(
    final_norm="model.embedding_norm.weight",
    attention_norm=f"{LAYER}operator_norm.weight",
    attention_out_norm=f"{LAYER}post_operator_norm.weight",
    mlp_norm=f"{LAYER}ffn_norm.weight",
    mlp_out_norm=f"{LAYER}post_ffn_norm.weight",
    gate=f"{LAYER}feed_forward.w1",
    up=f"{LAYER}feed_forward.w3",
    down=f"{LAYER}feed_forward.w2",
    attention_gate=GATE,
    has_gates_of_heads=True,
)
ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "conv_width": 7,
    "sliding_window": 256,
    "tie_word_embeddings": True,
    "rope_parameters": ROPES,
}
PATTERN = (SLIDING, CONVOLUTION, FULL, CONVOLUTION)  # but the first layer is a convolution


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"norm_eps": "rms_norm_eps", "conv_L_cache": "conv_width"}, **DEFAULTS)
    layers = found.get("num_hidden_layers")
    if "layer_types" not in found and isinstance(layers, int):
        kinds = [PATTERN[layer % len(PATTERN)] for layer in range(min(layers, MAX_LAYERS))]
        found["layer_types"] = [CONVOLUTION, *kinds[1:]][:layers] if layers > 0 else []
    return found | {"hidden_act": "silu"}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    kinds = layer_kinds(config)
    of_attention = iter(ropes_of_kinds(config, [kind for kind in kinds if kind != CONVOLUTION]))
    return tuple(RopeScaling("none") if kind == CONVOLUTION else next(of_attention) for kind in kinds)


def adapted(family: Family, config: HFConfig) -> Family:
    names = family.weight_names
    if not config.use_sandwich_norm:
        names = replace(names, attention_out_norm="", mlp_out_norm="")
    return replace(family, weight_names=names, attention_gate="sigmoid" if config.use_attention_gate else None)


LFM3 = replace(
    LFM2,
    name="lfm3",
    architectures=("Lfm3ForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_attention,
    sliding_windows=windows_by_pattern,
    ropes=ropes,
    layer_types=(FULL, SLIDING, CONVOLUTION),
    config=config,
    adapted=adapted,
)
