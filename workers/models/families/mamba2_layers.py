"""The Mamba 2 layers that several families share."""

import math
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.mamba2 import Mamba2Layer
from ...geometry.recurrent.recurrent import Recurrent
from .family import FULL

LINEAR = "linear_attention"  # a value of layer_types
OLDER = {"mamba": LINEAR, "attention": FULL}


def mamba2_layer(config: HFConfig) -> Mamba2Layer:
    """Raises ConfigError for sizes that no kernel supports."""
    heads, inner = config.mamba_n_heads, config.mamba_expand * config.hidden_size
    head_dim = inner // heads if config.mamba_d_head == "auto" and heads > 0 else config.mamba_d_head
    if not isinstance(head_dim, int) or heads * head_dim != inner:
        raise ConfigError(
            f"config.json: {heads} Mamba 2 heads of {head_dim} elements are not the {config.mamba_expand} * "
            f"hidden_size = {inner} elements of a layer"
        )
    return layer_of_heads(config, head_dim)


def layer_of_heads(config: HFConfig, head_dim: int) -> Mamba2Layer:
    """A layer of mamba_n_heads heads of `head_dim` elements. Raises ConfigError for sizes that no kernel supports."""
    sizes = config.mamba_n_heads, head_dim, config.mamba_n_groups, config.mamba_d_state, config.mamba_d_conv
    layer = Mamba2Layer(*sizes, config.mamba_proj_bias, config.mamba_conv_bias, config.time_step_limit)
    layer.check()
    return layer


def by_layer_type(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layer, kinds = mamba2_layer(config), config.layer_types or [LINEAR] * config.num_hidden_layers
    return tuple(layer if kind == LINEAR else None for kind in kinds)


def time_steps(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with a time_step_limit of numbers: newer files spell infinity as an object."""
    limits = fields.get("time_step_limit")
    if isinstance(limits, list):
        infinite = {"__float__": "Infinity"}
        fields = fields | {"time_step_limit": [math.inf if each == infinite else each for each in limits]}
    return fields
