"""MiniCPM: as Llama, with scaling factors for embeddings, residuals and logits."""

import math
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from .family import Family, need, positive


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("MiniCPM", fields, sparse_config=None, attention_bias=False, num_experts=0, mixer_types=None)
    found = {"tie_word_embeddings": True, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1} | fields
    return found | {
        "embedding_multiplier": positive(found, "scale_emb"),
        "residual_multiplier": positive(found, "scale_depth") / math.sqrt(positive(found, "num_hidden_layers")),
        "logits_scaling": positive(found, "hidden_size") / positive(found, "dim_model_base"),
    }


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(config.embedding_multiplier, config.residual_multiplier, 1.0 / config.logits_scaling)


MINICPM = Family("minicpm", ("MiniCPMForCausalLM",), multipliers=multipliers, config=config)
