"""OLMo 3: as OLMo 2, with a sliding window in three layers of four; only the others have a scaled rope."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from . import olmo2
from .family import FULL, SLIDING, layer_kinds, windows_by_pattern
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = {"sliding_window": 4096, "rope_theta": 500000.0} | olmo2.config(fields)
    return found | {"sliding_window_pattern": 4}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    given = config.rope_parameters or {}  # by kind of layer; in older files, only for full attention
    full = given.get(FULL) or ({} if SLIDING in given else given or config.rope_scaling or {})
    of_kind = {FULL: rope_of(config, full), SLIDING: rope_of(config, given.get(SLIDING) or {})}
    return tuple(of_kind[kind] for kind in layer_kinds(config))


OLMO3 = replace(
    olmo2.OLMO2,
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    sliding_windows=windows_by_pattern,
    ropes=ropes,
    config=config,
)
