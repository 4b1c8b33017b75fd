"""Gemma 3, text alone: as Gemma, with norms on both sides, normalised heads, and windows with a rope of their own."""

from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.geometry import Multipliers, RopeScaling
from ...checkpoint.hf_config import HFConfig, rope_of
from . import gemma
from .family import WeightNames

FULL_EVERY = 6  # layers
FULL, SLIDING = "full_attention", "sliding_attention"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if fields.get(name):
            raise ConfigError(f"config.json: {name}={fields[name]} is not supported for Gemma 3")
    found = {"rope_theta": 1e6, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256} | fields
    scalar = found["query_pre_attn_scalar"]
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise ConfigError(f"config.json: query_pre_attn_scalar={scalar!r} must be a number above 0")
    return gemma.config(found) | {"attention_multiplier": scalar**-0.5}


def kinds(config: HFConfig) -> list[str]:
    layers = range(config.num_hidden_layers)
    return config.layer_types or [SLIDING if (layer + 1) % FULL_EVERY else FULL for layer in layers]


def windows(config: HFConfig) -> tuple[int, ...]:
    return tuple((config.sliding_window or 0) if kind == SLIDING else 0 for kind in kinds(config))


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    local = {"rope_theta": config.rope_local_base_freq}
    given = config.rope_parameters or {}
    if FULL in given or SLIDING in given:
        by_kind = {FULL: given.get(FULL) or {}, SLIDING: given.get(SLIDING) or local}
    else:
        by_kind = {FULL: given or config.rope_scaling or {}, SLIDING: local}
    of_kind = {kind: rope_of(config, parameters) for kind, parameters in by_kind.items()}
    return tuple(of_kind[kind] for kind in kinds(config))


def multipliers(config: HFConfig, dtype: torch.dtype) -> Multipliers:
    return replace(gemma.multipliers(config, dtype), scores=config.attention_multiplier)


LAYER = "model.layers.{}."
NAMES = WeightNames(
    attention_out_norm=f"{LAYER}post_attention_layernorm.weight",
    mlp_norm=f"{LAYER}pre_feedforward_layernorm.weight",
    mlp_out_norm=f"{LAYER}post_feedforward_layernorm.weight",
)
GEMMA3 = replace(
    gemma.GEMMA,
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    weight_names=NAMES,
    sliding_windows=windows,
    qk_norm=True,
    ropes=ropes,
    multipliers=multipliers,
    config=config,
)
