"""Falcon: one matrix of q, k and v, grouped by KV head; parallel layers with one or two norms; rotation or ALiBi.

ALiBi's slopes are those of transformers: rounded to bfloat16, and scaled with the scores. transformers also rounds the
bias of a score, slope times position, to bfloat16, even in a float32 model; here it is exact.
"""

import math
from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.layer_options import alibi_slopes
from ..names.weight_names import WeightNames
from .family import Family, no_ropes, renamed
from .starcoder2 import biases

FIELDS = {
    "num_kv_heads": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size",
    "activation": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
    "num_ln_in_parallel_attn": "num_norms",
    "parallel_attn": "use_parallel_residual",
    "bias": "attention_bias",
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"tie_word_embeddings": True, "max_position_embeddings": 2048, "use_parallel_residual": True}
    found = renamed(fields, FIELDS, hidden_act="gelu", rms_norm_eps=1e-5, num_norms=2, **defaults)
    if isinstance(size := found.get("hidden_size"), int):
        found.setdefault("intermediate_size", 4 * size)
    if fields.get("new_decoder_architecture"):
        return found | {"use_parallel_residual": True}
    return found | {"num_norms": 1, "num_key_value_heads": 1 if fields.get("multi_query", True) else None}


LAYER = "transformer.h.{}."
QKV = f"{LAYER}self_attention.query_key_value"
NAMES = WeightNames(
    embedding="transformer.word_embeddings.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}input_layernorm.weight",
    mlp_norm=f"{LAYER}post_attention_layernorm.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}self_attention.dense",
    up=f"{LAYER}mlp.dense_h_to_4h",
    down=f"{LAYER}mlp.dense_4h_to_h",
    are_grouped=True,
)
ONE_NORM = replace(NAMES, mlp_norm="")
TWO_NORMS = replace(NAMES, attention_norm=f"{LAYER}ln_attn.weight", mlp_norm=f"{LAYER}ln_mlp.weight")


def slopes(config: HFConfig) -> tuple[float, ...]:
    scale = 1.0 / math.sqrt(config.hidden_size // config.num_attention_heads)
    return tuple((alibi_slopes(config.num_attention_heads).bfloat16().float() * scale).tolist())


def adapted(family: Family, config: HFConfig) -> Family:
    if config.alibi:
        family = replace(family, slopes=slopes, ropes=no_ropes)
    if not config.use_parallel_residual:
        return family
    return replace(family, is_parallel=True, weight_names=TWO_NORMS if config.num_norms == 2 else ONE_NORM)


FALCON = Family(
    "falcon", ("FalconForCausalLM",), NAMES, biases, norm="layer", is_gated=False, config=config, adapted=adapted
)
