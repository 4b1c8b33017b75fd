"""Ling 3: most layers are Kimi delta attention with bounded decays, the others gated latent attention; experts."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ..names.recurrent_names import GatedDeltaNames
from ..names.weight_names import ExpertNames, LatentNames, WeightNames
from . import glm4_moe
from .deepseek import DEEPSEEK_V3
from .expert_layers import dense_layers
from .family import FULL, MAX_LAYERS, Family, need, renamed
from .gated_delta_layers import gated_delta_layer, in_linear_layers
from .kimi_linear import COUNTS
from .latent_sizes import sized
from .mamba2_layers import LINEAR

ATTENTION, SHARED = "model.layers.{}.attention.", "model.layers.{}.mlp.shared_experts."
OUTPUT = f"{ATTENTION}dense"
DELTA = GatedDeltaNames(
    query=f"{ATTENTION}q_proj",
    key=f"{ATTENTION}k_proj",
    value=f"{ATTENTION}v_proj",
    gates=f"{ATTENTION}g_proj",
    b=f"{ATTENTION}b_proj",
    alpha=f"{ATTENTION}f_proj",
    query_convolution=f"{ATTENTION}q_conv1d",
    key_convolution=f"{ATTENTION}k_conv1d",
    value_convolution=f"{ATTENTION}v_conv1d",
    a_log=f"{ATTENTION}A_log",
    dt_bias=f"{ATTENTION}dt_bias",
    norm=f"{ATTENTION}o_norm.weight",
    output=f"{ATTENTION}o_proj",
)
NAMES = WeightNames(
    embedding="model.word_embeddings.weight",
    query=f"{ATTENTION}q_proj",
    output=OUTPUT,
    attention_gate=f"{ATTENTION}g_proj",
    has_gates_of_heads=True,
    experts=ExpertNames(
        correction="model.layers.{}.mlp.gate.expert_bias",
        shared_gate=f"{SHARED}gate_proj",
        shared_up=f"{SHARED}up_proj",
        shared_down=f"{SHARED}down_proj",
    ),
    latent=LatentNames(
        query_down=f"{ATTENTION}q_a_proj",
        query_norm=f"{ATTENTION}q_a_layernorm.weight",
        query_up=f"{ATTENTION}q_b_proj",
        down=f"{ATTENTION}kv_a_proj_with_mqa",
        norm=f"{ATTENTION}kv_a_layernorm.weight",
        up=f"{ATTENTION}kv_b_proj",
    ),
    gated_delta=DELTA,
)
AS_SAVED = replace(NAMES, gated_delta=replace(DELTA, output=OUTPUT))  # by transformers
NEEDED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "use_qkv_bias": False,
    "use_bias": False,
    "rope_interleave": True,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "moe_router_enable_expert_bias": True,
    "scoring_func": "sigmoid",
    "score_function": "sigmoid",
    "topk_method": "noaux_tc",
}
DEFAULTS = {
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "moe_intermediate_size": 768,
    "first_k_dense_replace": 2,
    "routed_scaling_factor": 2.5,
    "rope_theta": 6e6,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Ling 3", fields, **NEEDED)
    for name in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        if any(fields.get(name) or ()):
            raise ConfigError(f"config.json: {name}={fields[name]} is not supported for Ling 3; only null is")
    found = renamed(fields, COUNTS, **DEFAULTS) | dense_layers(fields)
    need("Ling 3", fields, moe_shared_expert_intermediate_size=found["moe_intermediate_size"])
    # The part of a head that is rotated has a size of its own; this one is that of Ling 2.
    found |= {"partial_rotary_factor": None, "rotary_dim": None}
    return sized(found, fields, None, 512, 128, 64, 128) | _linear_fields(fields)


def _linear_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Sizes and kinds of layers, in the form of published files or in that of transformers."""
    heads = fields.get("linear_num_heads", fields.get("num_attention_heads"))
    size = fields.get("linear_head_dim", fields.get("head_dim", 128))
    return {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_conv_kernel_dim": fields.get("linear_conv_kernel_dim", fields.get("short_conv_kernel_size", 4)),
        "linear_lower_bound": fields.get("kda_lower_bound", -5.0) if fields.get("kda_safe_gate", True) else 0.0,
        "layer_types": fields.get("layer_types") or _layer_types(fields),
    }


def _layer_types(fields: dict[str, Any]) -> list[str] | None:
    layers, size = fields.get("num_hidden_layers"), fields.get("layer_group_size", 6)
    if not isinstance(layers, int) or layers > MAX_LAYERS:
        return None  # refused under its own name
    if (
        not isinstance(size, int) or size < 1 or layers % size
    ):  # engines disagree about the layers of a last, smaller group
        raise ConfigError(
            f"config.json: layer_group_size={size!r} must divide num_hidden_layers={layers}, or layer_types state the "
            "kind of each layer"
        )
    return [LINEAR if layer % size else FULL for layer in range(1, layers + 1)]


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layer = gated_delta_layer(config, config.rms_norm_eps)
    layer = replace(layer, has_decays_of_elements=True, lower_bound=config.linear_lower_bound)
    layer.check()
    return in_linear_layers(layer, config)


def adapted(family: Family, config: HFConfig) -> Family:
    names = glm4_moe.without_later_layers(family.weight_names, config)
    saved = glm4_moe.without_later_layers(AS_SAVED, config)
    return replace(family, weight_names=replace(names, others=(saved,)))


BAILING_HYBRID = replace(
    DEEPSEEK_V3,
    name="bailing_hybrid",
    architectures=("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
    weight_names=NAMES,
    interleaved=True,
    layer_types=(FULL, LINEAR),
    attention_gate="sigmoid",
    config=config,
    adapted=adapted,
    recurrent=recurrent,
    mtp=None,
)
