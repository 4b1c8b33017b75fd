"""Qwen 1: Llama with other names, fused QKV with biases, and a context that ends where its scores would be scaled."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from .family import Family, need, renamed

LAYER = "transformer.h.{}."
QKV = f"{LAYER}attn.c_attn"
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}ln_1.weight",
    mlp_norm=f"{LAYER}ln_2.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}attn.c_proj",
    gate=f"{LAYER}mlp.w2",
    up=f"{LAYER}mlp.w1",
    down=f"{LAYER}mlp.c_proj",
)
FIELDS = {"kv_channels": "head_dim", "layer_norm_epsilon": "rms_norm_eps", "rotary_emb_base": "rope_theta"}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """Beyond `seq_length` tokens the rotation would be stretched, and scores would grow with the position."""
    need("Qwen 1", fields, no_bias=True, rotary_pct=1.0, scale_attn_weights=True, fp32=False)
    found = renamed(fields, FIELDS, seq_length=8192, max_position_embeddings=32_768, head_dim=128)
    length, size = found["seq_length"], found.get("intermediate_size")
    if isinstance(length, int) and (fields.get("use_dynamic_ntk", True) or fields.get("use_logn_attn", True)):
        found["max_position_embeddings"] = min(length, found["max_position_embeddings"])
    if isinstance(size, int):
        found["intermediate_size"] = size // 2  # config.json has both projections together
    return found | {"num_key_value_heads": None, "hidden_act": "silu"}


def biases(_: HFConfig) -> Biases:
    return Biases(qkv=True)


QWEN = Family("qwen", ("QWenLMHeadModel",), NAMES, biases, config=config)
