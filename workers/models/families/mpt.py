"""MPT: ALiBi instead of position embeddings, layer norms, no biases; some models clip queries, keys and values."""

from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from ..names.weight_names import WeightNames
from .family import Family, need, no_ropes, renamed, usual_slopes

FIELDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "softmax_scale": "attention_multiplier",
}
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "gelu"}
ATTENTION = {"alibi": True, "alibi_bias_max": 8, "qk_ln": False, "prefix_lm": False}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    attention = fields.get("attn_config") or {}
    if not isinstance(attention, dict):
        raise ConfigError(f"config.json: attn_config={attention!r} must be an object")
    need("MPT", attention, **ATTENTION, attn_type="multihead_attention")
    need("MPT", fields, no_bias=True, expansion_ratio=4, logit_scale=1.0)
    chosen = {name: attention.get(name) for name in ("clip_qkv", "softmax_scale")}
    found = renamed({**fields, **chosen}, FIELDS, **DEFAULTS)
    if isinstance(size := found.get("hidden_size"), int):
        found["intermediate_size"] = 4 * size
    return found


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    return Multipliers(scores=config.attention_multiplier)


LAYER = "transformer.blocks.{}."
QKV = f"{LAYER}attn.Wqkv"
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.norm_f.weight",
    attention_norm=f"{LAYER}norm_1.weight",
    mlp_norm=f"{LAYER}norm_2.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}attn.out_proj",
    up=f"{LAYER}ffn.up_proj",
    down=f"{LAYER}ffn.down_proj",
)
MPT = Family(
    name="mpt",
    architectures=("MptForCausalLM", "MPTForCausalLM"),
    weight_names=NAMES,
    norm="unbiased_layer",
    is_gated=False,
    ropes=no_ropes,
    slopes=usual_slopes,
    multipliers=multipliers,
    config=config,
)
