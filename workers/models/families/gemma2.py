"""Gemma 2: as Gemma, with pre- and post-norms, caps on scores and logits, and a sliding window in every other layer."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Caps
from . import gemma, gemma3
from .family import need, positive, windows_by_pattern

DEFAULTS = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Gemma 2", fields, use_bidirectional_attention=False)
    found = {"query_pre_attn_scalar": 256} | DEFAULTS | fields
    scale = positive(found, "query_pre_attn_scalar") ** -0.5
    return gemma.config(found) | {"attention_multiplier": scale, "sliding_window_pattern": 2}


def caps(config: HFConfig) -> Caps:
    return Caps(config.attn_logit_softcapping or 0.0, config.final_logit_softcapping or 0.0)


GEMMA2 = replace(
    gemma.GEMMA,
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    weight_names=gemma3.GEMMA3.weight_names,
    sliding_windows=windows_by_pattern,
    multipliers=gemma3.multipliers,
    caps=caps,
    config=config,
)
