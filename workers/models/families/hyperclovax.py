"""HyperCLOVA X: as Granite, with norms after attention and feed-forward, too; logits are multiplied by their factor."""

from dataclasses import replace
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from ..names.weight_names import WeightNames
from .family import Family, need
from .granite import GRANITE

LAYER = "model.layers.{}."
NAMES = WeightNames(attention_out_norm=f"{LAYER}post_norm1.weight", mlp_out_norm=f"{LAYER}post_norm2.weight")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("HyperCLOVA X", fields, layer_rope_theta=None, attention_sinks=False)
    return fields


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    own = config.embedding_multiplier, config.residual_multiplier, config.logits_scaling
    return Multipliers(*own, config.attention_multiplier)


def adapted(family: Family, config: HFConfig) -> Family:
    return family if config.use_post_norm else replace(family, weight_names=WeightNames())


HYPERCLOVAX = replace(
    GRANITE,
    name="hyperclovax",
    architectures=("HyperCLOVAXForCausalLM",),
    weight_names=NAMES,
    multipliers=multipliers,
    config=config,
    adapted=adapted,
)
