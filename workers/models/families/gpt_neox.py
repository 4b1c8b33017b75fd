"""GPT-NeoX (Pythia, Dolly 2): one matrix of q, k and v, grouped by head; partial rotation; mostly parallel layers."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from .family import Family, partial_rope_everywhere, renamed

FIELDS = {"layer_norm_eps": "rms_norm_eps", "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, hidden_act="gelu", rms_norm_eps=1e-5, partial_rotary_factor=0.25)
    return {"attention_bias": True, "use_parallel_residual": True} | found | {"num_key_value_heads": None}


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, mlp=True)


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, is_parallel=config.use_parallel_residual)


LAYER = "gpt_neox.layers.{}."
QKV = f"{LAYER}attention.query_key_value"
NAMES = WeightNames(
    embedding="gpt_neox.embed_in.weight",
    final_norm="gpt_neox.final_layer_norm.weight",
    output_head="embed_out.weight",
    attention_norm=f"{LAYER}input_layernorm.weight",
    mlp_norm=f"{LAYER}post_attention_layernorm.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}attention.dense",
    up=f"{LAYER}mlp.dense_h_to_4h",
    down=f"{LAYER}mlp.dense_4h_to_h",
    are_grouped=True,
    unused=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
)
GPT_NEOX = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    norm="layer",
    is_gated=False,
    ropes=partial_rope_everywhere,
    config=config,
    adapted=adapted,
)
