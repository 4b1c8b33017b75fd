"""BioGPT: as OPT, with scaled embeddings."""

from dataclasses import replace
from typing import Any

from . import xglm
from .family import need, renamed
from .opt import NAMES, OPT

EPS = 1e-5  # of all norms, whatever config.json says


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("BioGPT", fields, add_cross_attention=False)
    found = renamed(fields, {}, hidden_act="gelu", max_position_embeddings=1024, tie_word_embeddings=True)
    return xglm.with_scale(found | {"num_key_value_heads": None, "rms_norm_eps": EPS})


BIOGPT = replace(
    OPT,
    name="biogpt",
    architectures=("BioGptForCausalLM",),
    weight_names=replace(
        NAMES.begun("model.decoder.", "biogpt."),
        final_norm="biogpt.layer_norm.weight",
        output_head="output_projection.weight",
    ),
    multipliers=xglm.multipliers,
    config=config,
    adapted=xglm.XGLM.adapted,
)
