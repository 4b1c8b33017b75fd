"""EXAONE 4: post-norms as in OLMo 2, but query and key norms per head.

In a model with sliding windows, the layers with full attention have no rotary embedding.
"""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import QKNorm
from ...geometry.rope_scaling import RopeScaling
from .family import SLIDING, Family, layer_kinds, renamed, rope_everywhere, windows_by_pattern
from .olmo2 import NAMES
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names. A window pattern that is 0 or a string is dropped: `layer_types` has the same."""
    found = renamed(fields, {}, rms_norm_eps=1e-5, sliding_window_pattern=4)
    if not isinstance(found["sliding_window_pattern"], int) or not found["sliding_window_pattern"]:
        found["sliding_window_pattern"] = 4
    return found


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    if not config.sliding_window:
        return rope_everywhere(config)
    return tuple(rope_of(config) if kind == SLIDING else RopeScaling("none") for kind in layer_kinds(config))


EXAONE4 = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    weight_names=NAMES,
    sliding_windows=windows_by_pattern,
    qk_norm=QKNorm(),
    ropes=ropes,
    config=config,
)
