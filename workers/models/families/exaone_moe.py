"""K-EXAONE: attention as in EXAONE 4, with pre-norms; experts as in GLM-4.5; the first layers are dense."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ..names.weight_names import WeightNames
from . import exaone4, glm4_moe
from .expert_layers import dense_layers
from .family import need, renamed

CORRECTION = "model.layers.{}.mlp.e_score_correction_bias"
COUNTS = {"num_experts": 64, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1024}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("K-EXAONE", fields, scoring_func="sigmoid", topk_method="noaux_tc", attention_bias=False, mlp_bias=False)
    need("K-EXAONE", fields, sliding_windows=None, swiglu_limits=None)  # of single layers, in version 2
    more = {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
    names = {"num_shared_experts": "n_shared_experts", "first_last_k_dense_replace": "first_k_dense_replace"}
    found = renamed(fields, names, **COUNTS, **more)
    window = {"sliding_window": fields.get("sliding_window", 4096)}  # null: none
    return exaone4.config(found | dense_layers(_with_kinds(fields))) | window


def _with_kinds(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with `mlp_layer_types`, for which files of the first release have `is_moe_layer`."""
    if (sparse := fields.get("is_moe_layer")) is None or fields.get("mlp_layer_types") is not None:
        return fields
    if not isinstance(sparse, list) or not all(isinstance(each, bool) for each in sparse):
        raise ConfigError(f"config.json: is_moe_layer={sparse!r} must be a list of true and false")
    return fields | {"mlp_layer_types": ["sparse" if each else "dense" for each in sparse]}


EXAONE_MOE = replace(
    exaone4.EXAONE4,
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    weight_names=WeightNames(
        experts=replace(glm4_moe.NAMES, correction=CORRECTION),
        unused_prefixes=("mtp.",),  # of layers that predict several tokens at once
    ),
    config=config,
    experts=glm4_moe.experts,
)
