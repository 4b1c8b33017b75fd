"""K-EXAONE: attention as in EXAONE 4, with pre-norms; experts as in GLM-4.5; the first layers are dense."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from . import exaone4, glm4_moe
from .expert_layers import dense_layers
from .family import need, renamed

CORRECTION = "model.layers.{}.mlp.e_score_correction_bias"
COUNTS = {"num_experts": 64, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1024}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("K-EXAONE", fields, scoring_func="sigmoid", topk_method="noaux_tc")
    more = {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
    found = renamed(fields, {"num_shared_experts": "n_shared_experts"}, **COUNTS, **more)
    window = {"sliding_window": fields.get("sliding_window", 4096)}  # null: none
    return exaone4.config(found | dense_layers(fields)) | window


EXAONE_MOE = replace(
    exaone4.EXAONE4,
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM",),
    weight_names=WeightNames(
        experts=replace(glm4_moe.NAMES, correction=CORRECTION),
        unused_prefixes=("mtp.",),  # of layers that predict several tokens at once
    ),
    config=config,
    experts=glm4_moe.experts,
)
