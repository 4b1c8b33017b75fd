"""Gemma 1: as Llama, with norm weights stored minus 1 and embeddings scaled by sqrt(hidden_size)."""

import math
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from .family import Family, biases_of_attention, need

TANH = "gelu_pytorch_tanh"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names. In the first release, hidden_act "gelu" means the approximation with tanh."""
    need("Gemma", fields, use_bidirectional_attention=False)
    kind = fields.get("hidden_activation") or fields.get("hidden_act")
    return {"tie_word_embeddings": True} | fields | {"hidden_act": TANH if kind in (None, "gelu") else kind}


def multipliers(config: HFConfig, dtype: torch.dtype) -> Multipliers:
    """The square root of hidden_size as a factor of embeddings, rounded to their dtype."""
    return Multipliers(embedding=torch.tensor(math.sqrt(config.hidden_size), dtype=dtype).item())


GEMMA = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    biases=biases_of_attention,
    default_head_dim=256,
    norm="rms_less_1",
    multipliers=multipliers,
    config=config,
)
