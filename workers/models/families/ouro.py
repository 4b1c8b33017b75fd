"""Ouro: Llama with post-norms beside pre-norms, whose layers run several times; the last norm ends each time."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ..names.weight_names import WeightNames
from .family import FULL, MAX_LAYERS, Family, need

LAYER, GATE = "model.layers.{}.", "model.early_exit_gate"
NAMES = WeightNames(
    attention_out_norm=f"{LAYER}input_layernorm_2.weight",
    mlp_out_norm=f"{LAYER}post_attention_layernorm_2.weight",
    unused_prefixes=(f"{GATE}.",),
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Ouro", fields, use_sliding_window=False, early_exit_threshold=1.0)
    loops, layers = fields.get("total_ut_steps", 4), fields.get("num_hidden_layers")
    if not isinstance(loops, int) or loops < 1:
        raise ConfigError(f"config.json: total_ut_steps={loops!r} must be at least 1")
    if not isinstance(layers, int) or not 0 < layers * loops <= MAX_LAYERS:
        raise ConfigError(
            f"config.json: num_hidden_layers={layers!r} times total_ut_steps={loops} must be from 1 to {MAX_LAYERS}"
        )
    if isinstance(kinds := fields.get("layer_types"), list) and set(map(str, kinds)) != {FULL}:
        raise ConfigError(f"config.json: layer_types of Ouro may only have {FULL}, but is {kinds}")
    return fields | {"num_hidden_layers": layers * loops, "layer_types": None, "num_loops": loops}


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    return replace(geometry, num_loops=config.num_loops)


OURO = Family("ouro", ("OuroForCausalLM",), NAMES, config=config, refined=refined)
