"""OLMo Hybrid: most layers are gated delta nets with pre-norms; the others are OLMo 2's, usually without rotation."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ...geometry.rope_scaling import RopeScaling
from ..names.recurrent_names import GatedDeltaNames
from ..names.weight_names import NormNames
from .family import FULL, biases_of_attention, need, no_ropes, renamed, rope_everywhere
from .gated_delta_layers import gated_delta_layer, in_linear_layers
from .mamba2_layers import LINEAR
from .olmo2 import OLMO2

LAYER = "model.layers.{}."
DELTA = f"{LAYER}linear_attn."
NORM_EPS = 1e-5  # of gated delta nets, whatever rms_norm_eps is
NAMES = replace(
    OLMO2.weight_names,
    recurrent_norms=NormNames(f"{LAYER}input_layernorm.weight", f"{LAYER}post_attention_layernorm.weight"),
    gated_delta=GatedDeltaNames(
        query=f"{DELTA}q_proj",
        key=f"{DELTA}k_proj",
        value=f"{DELTA}v_proj",
        gates=f"{DELTA}g_proj",
        b=f"{DELTA}b_proj",
        alpha=f"{DELTA}a_proj",
        query_convolution=f"{DELTA}q_conv1d",
        key_convolution=f"{DELTA}k_conv1d",
        value_convolution=f"{DELTA}v_conv1d",
        norm=f"{DELTA}o_norm.weight",
        output=f"{DELTA}o_proj",
    ),
)

RENAMED = replace(  # by the converter of the training framework
    NAMES,
    recurrent_norms=NormNames(f"{LAYER}attention_layer_norm.weight", f"{LAYER}feedforward_layer_norm.weight"),
)
AS_SAVED = replace(RENAMED, attention_out_norm=f"{LAYER}feedforward_layer_norm.weight")  # by transformers


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("OLMo Hybrid", fields, hidden_act="silu")
    return renamed(fields, {}, rms_norm_eps=1e-6) | _linear_sizes(fields)


def _linear_sizes(fields: dict[str, Any]) -> dict[str, Any]:
    """The sizes of gated delta nets, which depend on those of attention if config.json does not have them."""
    hidden, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        return {}  # refused under its own name
    key_heads = fields.get("linear_num_key_heads") or heads
    key_dim = fields.get("linear_key_head_dim") or 3 * hidden // (4 * key_heads)
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": fields.get("linear_num_value_heads") or heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": fields.get("linear_value_head_dim") or 2 * key_dim,
    }


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """Without a theta heads are not rotated."""
    thetas = (config.rope_parameters or {}).get("rope_theta"), config.rope_theta
    return no_ropes(config) if thetas == (None, None) else rope_everywhere(config)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    max_beta = 2.0 if config.linear_allow_neg_eigval else 1.0
    return in_linear_layers(gated_delta_layer(config, NORM_EPS, max_beta), config)


OLMO_HYBRID = replace(
    OLMO2,
    name="olmo_hybrid",
    architectures=("OlmoHybridForCausalLM",),
    weight_names=replace(NAMES, others=(RENAMED, AS_SAVED)),
    biases=biases_of_attention,
    ropes=ropes,
    layer_types=(FULL, LINEAR),
    config=config,
    recurrent=recurrent,
)
