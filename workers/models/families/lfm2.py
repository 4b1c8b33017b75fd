"""LFM2: most layers are short convolutions; the others have attention with query and key norms per head."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...checkpoint.recurrent.recurrent import Recurrent
from ...checkpoint.recurrent.short_convolution import ShortConvolution
from .family import FULL, Family, WeightNames, renamed

CONVOLUTION = "conv"
LAYER = "model.layers.{}."
NAMES = WeightNames(
    final_norm="model.embedding_norm.weight",
    attention_norm=f"{LAYER}operator_norm.weight",
    mlp_norm=f"{LAYER}ffn_norm.weight",
    output=f"{LAYER}self_attn.out_proj",
    query_norm=f"{LAYER}self_attn.q_layernorm.weight",
    key_norm=f"{LAYER}self_attn.k_layernorm.weight",
    gate=f"{LAYER}feed_forward.w1",
    up=f"{LAYER}feed_forward.w3",
    down=f"{LAYER}feed_forward.w2",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "intermediate_size": 12288}
    found = renamed(fields, {"norm_eps": "rms_norm_eps", "conv_L_cache": "conv_width"}, **defaults)
    for older, name in (("tie_embedding", "tie_word_embeddings"), ("block_ff_dim", "intermediate_size")):
        found[name] = found.get(older, found[name])
    if found.get("layer_types") is None and isinstance(layers := found.get("num_hidden_layers"), int):
        attention = found.get("full_attn_idxs", range(layers))
        found["layer_types"] = [FULL if layer in attention else CONVOLUTION for layer in range(layers)]
    if fields.get("block_auto_adjust_ff_dim", True):
        found["intermediate_size"] = _adjusted(found["intermediate_size"], fields)
    return found


def _adjusted(size: int, fields: dict[str, Any]) -> int:
    """Two thirds of `size`, times a factor, rounded up to a multiple."""
    size = 2 * size // 3
    if (factor := fields.get("block_ffn_dim_multiplier", 1.0)) is None:
        return size
    multiple = fields.get("block_multiple_of", 256)
    return int(-(-int(factor * size) // multiple) * multiple)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    kind = ShortConvolution(config.hidden_size, config.conv_width, config.conv_bias)
    return tuple(kind if layer == CONVOLUTION else None for layer in config.layer_types or ())


LFM2 = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    weight_names=NAMES,
    qk_norm=True,
    layer_types=(FULL, CONVOLUTION),
    config=config,
    recurrent=recurrent,
)
