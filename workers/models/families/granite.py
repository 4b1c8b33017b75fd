"""Granite 3: as Llama, with scaling factors for embeddings, residuals, scores and logits."""

from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from .family import Family, need
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Granite", fields, layer_rope_theta=None, attention_sinks=False)
    return fields


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    own = config.embedding_multiplier, config.residual_multiplier, 1.0 / config.logits_scaling
    return Multipliers(*own, config.attention_multiplier or 1.0)


GRANITE = Family("granite", ("GraniteForCausalLM",), biases=biases, multipliers=multipliers, config=config)
