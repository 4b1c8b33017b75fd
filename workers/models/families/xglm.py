"""XGLM: as OPT, with positions that are computed, and scaled embeddings."""

import math
from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from .family import as_it_is, need, renamed
from .opt import FIELDS, NAMES, OPT

FIRST_POSITION = NAMES.first_position


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("XGLM", fields, add_cross_attention=False, is_encoder_decoder=False)
    names = {"d_model": "hidden_size", "num_layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}
    defaults = {"hidden_act": "gelu", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    found = renamed(fields, FIELDS | names, **defaults) | {"num_key_value_heads": None}
    if isinstance(padding := fields.get("pad_token_id"), int) and padding >= FIRST_POSITION:
        raise ConfigError(
            f"config.json: pad_token_id={padding} must be less than {FIRST_POSITION} for XGLM, as the position in its "
            "place has no vector"
        )
    return with_scale(found)


def with_scale(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the factor of embeddings, unless `scale_embedding` is false."""
    size, is_scaled = fields.get("hidden_size"), fields.get("scale_embedding", True)
    if not is_scaled or not isinstance(size, int) or size < 1:  # such a size is refused under its own name
        return fields | {"embedding_multiplier": 1.0}
    return fields | {"embedding_multiplier": math.sqrt(size)}


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(embedding=config.embedding_multiplier)


XGLM = replace(
    OPT,
    name="xglm",
    architectures=("XGLMForCausalLM",),
    weight_names=replace(
        NAMES.begun("model.decoder.", "model."),
        final_norm="model.layer_norm.weight",
        has_sinusoids=True,
        unused=("embed_positions.weights",),
    ),
    multipliers=multipliers,
    config=config,
    adapted=as_it_is,
)
