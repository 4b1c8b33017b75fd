"""Gemma 3, text only: as Gemma, with pre- and post-norms, query and key norms, and another rope for sliding windows."""

from dataclasses import replace
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers, QKNorm
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from . import gemma
from .family import FULL, SLIDING, layer_kinds, need, positive, windows_by_pattern
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need(
        "Gemma 3", fields, attn_logit_softcapping=None, final_logit_softcapping=None, use_bidirectional_attention=False
    )
    found = {"rope_theta": 1e6, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256} | fields
    if found.get("sliding_window_pattern") is None:
        found["sliding_window_pattern"] = 6
    return gemma.config(found) | {"attention_multiplier": positive(found, "query_pre_attn_scalar") ** -0.5}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    given = config.rope_parameters or {}  # by kind of layer; in older files, only for full attention
    full = given.get(FULL) or ({} if SLIDING in given else given or config.rope_scaling or {})
    sliding = given.get(SLIDING) or {"rope_theta": config.rope_local_base_freq}
    of_kind = {FULL: rope_of(config, full), SLIDING: rope_of(config, sliding)}
    return tuple(of_kind[kind] for kind in layer_kinds(config))


def multipliers(config: HFConfig, dtype: torch.dtype) -> Multipliers:
    return replace(gemma.multipliers(config, dtype), scores=config.attention_multiplier)


GEMMA3 = replace(
    gemma.GEMMA,
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    weight_names=WeightNames(
        attention_out_norm="model.layers.{}.post_attention_layernorm.weight",
        mlp_norm="model.layers.{}.pre_feedforward_layernorm.weight",
        mlp_out_norm="model.layers.{}.post_feedforward_layernorm.weight",
    ),
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    multipliers=multipliers,
    config=config,
)
