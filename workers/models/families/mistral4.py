"""Mistral 4: latent attention and experts as in DeepSeek-V2, whose weights are divided by their sum.

Queries grow with the position as in Ministral 3.
"""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from . import ministral3
from .deepseek import COUNTS, DEEPSEEK_V2
from .family import need, renamed
from .latent_sizes import SIZES, sized

LATENT = (1024, 256, 64, 64, 128)  # the defaults of `sized`
DEFAULTS = {
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
}
ROPE = ministral3.YARN | {"rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192}
SHARE = "partial_rotary_factor"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Mistral 4", fields, attention_bias=False, mlp_bias=False, n_group=1, topk_group=1)
    found = sized(renamed(fields, COUNTS, **DEFAULTS), fields, *LATENT)
    if not found.keys() & {"rope_scaling", "rope_parameters"}:
        return found | {"rope_parameters": ROPE}
    return found | {name: _without_share(found, name) for name in ("rope_scaling", "rope_parameters") if name in found}


def _without_share(fields: dict[str, Any], name: str) -> Any:
    """The rope parameters without the share of a head that is rotated, which the sizes say. Raises ConfigError."""
    if not isinstance(parameters := fields[name], dict) or parameters.get(SHARE) is None:
        return parameters
    plain, rotated = (fields[size] for size in SIZES[1:3])
    if parameters[SHARE] != (stated := rotated / (plain + rotated)):
        raise ConfigError(
            f"config.json: {SHARE}={parameters[SHARE]} must be {stated:g}, which is qk_rope_head_dim={rotated} of "
            f"{plain + rotated} elements; leave it out"
        )
    return {each: value for each, value in parameters.items() if each != SHARE}


MISTRAL4 = replace(
    DEEPSEEK_V2,
    name="mistral4",
    architectures=("Mistral4ForCausalLM",),
    config=config,
    ropes=ministral3.ropes,
)
