"""Command R, R+ and R7B: layer norms without bias, one per layer (parallel residual), and interleaved rotation."""

from dataclasses import replace
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers, QKNorm
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .family import (
    SLIDING,
    Family,
    biases_of_attention,
    layer_kinds,
    positive,
    renamed,
    windows_by_pattern,
    with_qk_norm,
)
from .rope_config import rope_of


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = {"tie_word_embeddings": True, "logit_scale": 0.0625, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
    found |= {"sliding_window": 4096, "sliding_window_pattern": 4}
    found |= renamed(fields, {"layer_norm_eps": "rms_norm_eps", "use_qk_norm": "qk_norm"})
    return found | {"logits_scaling": 1.0 / positive(found, "logit_scale")}


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(logits=1.0 / config.logits_scaling)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """The ropes of the layers; those with full attention have no rotary embedding."""
    return tuple(rope_of(config) if kind == SLIDING else RopeScaling("none") for kind in layer_kinds(config))


COHERE = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    weight_names=WeightNames(mlp_norm=""),
    biases=biases_of_attention,
    norm="unbiased_layer",
    is_parallel=True,
    interleaved=True,
    multipliers=multipliers,
    config=config,
    qk_norm=QKNorm(has_weights_per_head=True),
    adapted=with_qk_norm,
)
TWO = "Cohere2ForCausalLM"
COHERE2 = replace(COHERE, name="cohere2", architectures=(TWO,), sliding_windows=windows_by_pattern, ropes=ropes)
