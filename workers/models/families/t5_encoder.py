"""T5's encoder: pre-norm layers without biases, with RMS norms; scores gain relative positions and are not scaled."""

from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.layer_options import RelativePositions
from ...geometry.model_options import Multipliers
from ..names.weight_names import WeightNames
from .family import Family, need, no_ropes, renamed

FIELDS = {
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "feed_forward_proj": "hidden_act",
}
NUM_BUCKETS, MAX_DISTANCE, POSITIONS = 32, 128, 512
GATED = "gelu_new"
ACTIVATIONS = {"relu": "relu", "gated-gelu": GATED}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    limits = {"relative_attention_num_buckets": NUM_BUCKETS, "relative_attention_max_distance": MAX_DISTANCE}
    need("T5", fields, **limits)
    if (given := fields.get("feed_forward_proj")) not in (None, *ACTIVATIONS):
        known = " and ".join(ACTIVATIONS)
        raise ConfigError(f"config.json: feed_forward_proj={given!r} is not supported for T5; {known} are")
    found = renamed(fields, FIELDS, hidden_act="relu", max_position_embeddings=POSITIONS)
    return found | {"hidden_act": ACTIVATIONS[found["hidden_act"]], "num_key_value_heads": None}


def multipliers(_: HFConfig, __: torch.dtype) -> Multipliers:
    return Multipliers(scores=1.0)


SELF, MLP = "encoder.block.{}.layer.0.", "encoder.block.{}.layer.1."
NAMES = WeightNames(
    embedding="shared.weight",
    relative_bias=f"{SELF}SelfAttention.relative_attention_bias.weight".format(0),
    attention_norm=f"{SELF}layer_norm.weight",
    mlp_norm=f"{MLP}layer_norm.weight",
    final_norm="encoder.final_layer_norm.weight",
    query=f"{SELF}SelfAttention.q",
    key=f"{SELF}SelfAttention.k",
    value=f"{SELF}SelfAttention.v",
    output=f"{SELF}SelfAttention.o",
    gate=f"{MLP}DenseReluDense.wi_0",
    up=f"{MLP}DenseReluDense.wi",
    down=f"{MLP}DenseReluDense.wo",
    unused=("encoder.embed_tokens.weight",),
    unused_prefixes=("decoder.", "lm_head."),
)


def adapted(family: Family, config: HFConfig) -> Family:
    """T5 1.1 and later have a gate."""
    if config.hidden_act != GATED:
        return family
    return replace(family, is_gated=True, weight_names=replace(NAMES, up=f"{MLP}DenseReluDense.wi_1"))


T5_ENCODER = Family(
    "t5_encoder",
    ("T5EncoderModel",),
    NAMES,
    ropes=no_ropes,
    is_gated=False,
    relative_positions=RelativePositions(NUM_BUCKETS, MAX_DISTANCE),
    multipliers=multipliers,
    config=config,
    adapted=adapted,
    is_bidirectional=True,
)
