"""MiniCPM3: as MiniCPM, with latent attention."""

from dataclasses import replace
from typing import Any

import torch

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from . import minicpm
from .family import positive
from .latent_sizes import latent, scale_of_scores, sized


def config(fields: dict[str, Any]) -> dict[str, Any]:
    scalings = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    given = {name: value for name, value in fields.items() if value is not None}
    found = minicpm.config({"rms_norm_eps": 1e-5} | scalings | given)
    value_dim = int(positive(found, "hidden_size") // max(1.0, positive(found, "num_attention_heads")))
    return sized(found, fields, 768, 256, 64, 32, value_dim)


def multipliers(config: HFConfig, dtype: torch.dtype) -> Multipliers:
    return replace(minicpm.multipliers(config, dtype), scores=scale_of_scores(config))


MINICPM3 = replace(
    minicpm.MINICPM,
    name="minicpm3",
    architectures=("MiniCPM3ForCausalLM",),
    multipliers=multipliers,
    config=config,
    latent=latent,
)
