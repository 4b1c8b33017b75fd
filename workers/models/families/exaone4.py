"""EXAONE 4: post-norms as in OLMo 2, but query and key norms per head.

In a model with sliding windows, the layers with full attention have no rotary embedding.
"""

from typing import Any

from ...checkpoint.geometry import RopeScaling
from ...checkpoint.hf_config import HFConfig
from .family import SLIDING, Family, layer_kinds, renamed, rope_everywhere
from .olmo2 import NAMES
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names. A window pattern that is null or a string is dropped: `layer_types` has the same."""
    found = renamed(fields, {}, rms_norm_eps=1e-5)
    if not isinstance(found.get("sliding_window_pattern"), int) or not found["sliding_window_pattern"]:
        found.pop("sliding_window_pattern", None)
    return found


def kinds(config: HFConfig) -> list[str]:
    return layer_kinds(config, config.sliding_window_pattern or 4)


def windows(config: HFConfig) -> tuple[int, ...]:
    window = config.sliding_window or 0
    return tuple(window if kind == SLIDING else 0 for kind in kinds(config))


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    if not config.sliding_window:
        return rope_everywhere(config)
    return tuple(rope_of(config) if kind == SLIDING else RopeScaling("none") for kind in kinds(config))


EXAONE4 = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    weight_names=NAMES,
    sliding_windows=windows,
    qk_norm=True,
    ropes=ropes,
    config=config,
)
