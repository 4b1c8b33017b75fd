"""SmolLM3: as Llama, but every fourth layer has no rotary embedding."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from .family import Family, windows_by_layer_type
from .llama import biases
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"tie_word_embeddings": True, "num_key_value_heads": 4} | fields


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    layers = range(config.num_hidden_layers)
    rotated = config.no_rope_layers or [(layer + 1) % 4 for layer in layers]
    if len(rotated) != len(layers):
        raise ConfigError(f"config.json: no_rope_layers has {len(rotated)} entries for {len(layers)} layers")
    return tuple(rope_of(config) if is_rotated else RopeScaling("none") for is_rotated in rotated)


SMOLLM3 = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    biases=biases,
    sliding_windows=windows_by_layer_type,
    ropes=ropes,
    config=config,
)
