"""Granite with windows: Granite 3 with attention sinks, windows in three layers of four, and a theta for each layer."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from . import granite
from .family import full_in_every_fourth, need, rope_everywhere, windows_by_pattern
from .rope_config import rope_of

SINKS = "model.layers.{}.self_attn.sinks"
DEFAULTS = {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 128}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Granite with windows", fields, attention_sinks=True)
    return full_in_every_fourth(DEFAULTS | fields)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """The ropes of the layers; those whose theta is 0 have no rotary embedding."""
    if (thetas := config.layer_rope_theta) is None:
        return rope_everywhere(config)
    if len(thetas) != config.num_hidden_layers:
        raise ConfigError(
            f"config.json: layer_rope_theta has {len(thetas)} numbers for {config.num_hidden_layers} layers; "
            "give one for each, or null"
        )
    parameters = config.rope_parameters or config.rope_scaling or {}
    of_theta = {theta: rope_of(config, parameters | {"rope_theta": theta}) for theta in set(thetas) - {0}}
    return tuple(of_theta.get(theta, RopeScaling("none")) for theta in thetas)


GRANITE_SWA = replace(
    granite.GRANITE,
    name="granite_swa",
    architectures=("GraniteSWAForCausalLM",),
    weight_names=WeightNames(sinks=SINKS),
    sliding_windows=windows_by_pattern,
    ropes=ropes,
    config=config,
)
