"""North Micro Vision's text: as Command R7B, with a half-split rotation, which kinds of layers may lack."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from . import cohere
from .family import FULL, layer_kinds
from .rope_config import ropes_of_kinds

NO_ROPE = RopeScaling("none")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names; without `layer_types` all layers have full attention."""
    stated = {name: value for name, value in fields.items() if value is not None}
    found = cohere.config({"logit_scale": 1.0, "sliding_window_pattern": 1} | stated)
    types, ropes = found.get("layer_types") or [FULL], found.get("rope_parameters")
    kinds = set(map(str, types)) if isinstance(types, list) else set()  # another value is refused under its name
    if isinstance(ropes, dict) and kinds & ropes.keys():  # published files have a rope beside those of kinds
        return found | {"rope_parameters": {name: ropes[name] for name in ropes if name in kinds}}
    return found


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    kinds, given = layer_kinds(config), config.rope_parameters or {}
    rotated = [kind for kind in kinds if given.get(kind, kind) is not None]
    found = dict(zip(rotated, ropes_of_kinds(config, rotated), strict=True))
    return tuple(found.get(kind, NO_ROPE) for kind in kinds)


COHERE_COMPASS = replace(
    cohere.COHERE2,
    name="cohere_compass",
    architectures=("CohereCompassForCausalLM",),
    qk_norm=None,
    interleaved=False,
    ropes=ropes,
    config=config,
)
