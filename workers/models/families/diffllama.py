"""DiffLlama: Llama with differential attention."""

import math
from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention, need, renamed, rope_everywhere


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("DiffLlama", fields, attention_dropout=0, mlp_bias=False)
    return renamed(fields, {}, rms_norm_eps=1e-5)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """Heads are as wide as their values; only the part that the file has is rotated."""
    size = config.head_dim or config.hidden_size // config.num_attention_heads
    return tuple(replace(rope, rotary_dim=size) for rope in rope_everywhere(config))


def refined(_: HFConfig, geometry: Geometry) -> Geometry:
    if geometry.num_kv_heads % 2:
        raise ConfigError(
            f"config.json: num_key_value_heads={geometry.num_kv_heads} must be even, as differential attention takes "
            "the difference of two heads"
        )
    scores = replace(geometry.multipliers, scores=1.0 / math.sqrt(geometry.head_dim))
    return replace(geometry, head_dim=2 * geometry.head_dim, multipliers=scores, is_differential=True)


DIFFLLAMA = Family(
    name="diffllama",
    architectures=("DiffLlamaForCausalLM",),
    weight_names=WeightNames(differential="model.layers.{}.self_attn.lambda_"),
    biases=biases_of_attention,
    ropes=ropes,
    config=config,
    refined=refined,
)
