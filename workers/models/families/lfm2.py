"""LFM2: most layers are short convolutions; the others have attention with query and key norms per head."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import MAX_SIZE, HFConfig
from ...geometry.model_options import QKNorm
from ...geometry.recurrent.recurrent import Recurrent
from ...geometry.recurrent.short_convolution import ShortConvolution
from ..names.weight_names import WeightNames
from .family import FULL, Family, positive, renamed

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
    names = {"norm_eps": "rms_norm_eps", "conv_L_cache": "conv_width", "full_attn_idxs": "attn_layer_indices"}
    found = renamed(fields, names, **defaults)
    for older, name in (("tie_embedding", "tie_word_embeddings"), ("block_ff_dim", "intermediate_size")):
        found[name] = found.get(older, found[name])
    if fields.get("block_auto_adjust_ff_dim", True):
        factors = {"block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256} | fields
        found["intermediate_size"] = _adjusted(2 * positive(found, "intermediate_size") // 3, factors)
    return found


def _adjusted(size: float, fields: dict[str, Any]) -> int:
    """`size` times a factor, rounded up to a multiple, unless the factor is null. Raises ConfigError."""
    if fields["block_ffn_dim_multiplier"] is not None:
        multiple = positive(fields, "block_multiple_of")
        size = -(-(positive(fields, "block_ffn_dim_multiplier") * size // 1) // multiple) * multiple
    if not 1 <= size <= MAX_SIZE:
        raise ConfigError(f"config.json: the adjusted intermediate size {size:g} must be from 1 to {MAX_SIZE}")
    return int(size)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layers = range(config.num_hidden_layers)
    attention = layers if config.attn_layer_indices is None else config.attn_layer_indices
    kinds = config.layer_types or [FULL if layer in attention else CONVOLUTION for layer in layers]
    convolution = ShortConvolution(config.hidden_size, config.conv_width, config.conv_bias)
    return tuple(convolution if kind == CONVOLUTION else None for kind in kinds)


LFM2 = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    weight_names=NAMES,
    qk_norm=QKNorm(),
    layer_types=(FULL, CONVOLUTION),
    config=config,
    recurrent=recurrent,
)
