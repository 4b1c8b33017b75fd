"""Kimi Linear: most layers are Kimi delta attention, the others latent attention without rotation; experts."""

from dataclasses import replace
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ..names.recurrent_names import GatedDeltaNames
from ..names.weight_names import ExpertNames, WeightNames
from .deepseek import DEEPSEEK_V3
from .expert_layers import dense_layers
from .family import FULL, as_it_is, need, no_ropes, renamed
from .gated_delta_layers import gated_delta_layer, in_linear_layers
from .latent_sizes import sized
from .mamba2_layers import LINEAR

DELTA, EXPERTS = "model.layers.{}.self_attn.", "model.layers.{}.block_sparse_moe."
NAMES = WeightNames(
    experts=ExpertNames(
        router=f"{EXPERTS}gate",
        correction=f"{EXPERTS}gate.e_score_correction_bias",
        gate=f"{EXPERTS}experts.{{}}.w1",
        up=f"{EXPERTS}experts.{{}}.w3",
        down=f"{EXPERTS}experts.{{}}.w2",
        shared_gate=f"{EXPERTS}shared_experts.gate_proj",
        shared_up=f"{EXPERTS}shared_experts.up_proj",
        shared_down=f"{EXPERTS}shared_experts.down_proj",
    ),
    gated_delta=GatedDeltaNames(
        query=f"{DELTA}q_proj",
        key=f"{DELTA}k_proj",
        value=f"{DELTA}v_proj",
        b=f"{DELTA}b_proj",
        decays_down=f"{DELTA}f_a_proj",
        decays_up=f"{DELTA}f_b_proj",
        gates_down=f"{DELTA}g_a_proj",
        gates_up=f"{DELTA}g_b_proj",
        query_convolution=f"{DELTA}q_conv1d",
        key_convolution=f"{DELTA}k_conv1d",
        value_convolution=f"{DELTA}v_conv1d",
        a_log=f"{DELTA}A_log",
        dt_bias=f"{DELTA}dt_bias",
        norm=f"{DELTA}o_norm.weight",
        output=f"{DELTA}o_proj",
    ),
)
AS_SAVED = replace(NAMES, gate=f"{EXPERTS}gate_proj", up=f"{EXPERTS}up_proj", down=f"{EXPERTS}down_proj")
COUNTS = {
    "num_experts_per_token": "num_experts_per_tok",
    "num_local_experts": "num_experts",
    "num_shared_experts": "n_shared_experts",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
    "model_max_length": "max_position_embeddings",
}
DEFAULTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
}


class LinearAttention(msgspec.Struct, frozen=True):
    """The field linear_attn_config; layers are counted from 1."""

    full_attn_layers: list[int] | None = None
    kda_layers: list[int] | None = None
    head_dim: int = 128
    num_heads: int = 32
    short_conv_kernel_size: int = 4
    gate_lower_bound: float | None = None
    use_full_rank_gate: bool = False


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Kimi Linear", fields, hidden_act="silu", attention_bias=False, moe_router_activation_func="sigmoid")
    need("Kimi Linear", fields, moe_layer_freq=1, mla_use_nope=True, topk_method="noaux_tc")
    need("Kimi Linear", fields, mla_use_output_gate=False, attn_res_block_size=None)  # these and the next: of Kimi K3
    need("Kimi Linear", fields, routed_expert_hidden_size=None, latent_moe_use_norm=False)
    found = renamed(fields, COUNTS, **DEFAULTS) | dense_layers(fields)
    return sized(found, fields, None, 512, 128, 64, 128) | _linear_fields(fields)


def _linear_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Sizes and kinds of layers, in the form of published files or in that of transformers."""
    try:
        linear = msgspec.convert(fields.get("linear_attn_config") or {}, LinearAttention)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: linear_attn_config cannot be used: {error}") from error
    need("Kimi Linear", msgspec.structs.asdict(linear), gate_lower_bound=None, use_full_rank_gate=False)
    heads, size = fields.get("linear_num_heads", linear.num_heads), fields.get("linear_head_dim", linear.head_dim)
    return {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_conv_kernel_dim": fields.get("linear_conv_kernel_dim", linear.short_conv_kernel_size),
        "layer_types": fields.get("layer_types") or _layer_types(linear, fields.get("num_hidden_layers")),
    }


def _layer_types(linear: LinearAttention, layers: Any) -> list[str] | None:
    full, delta = linear.full_attn_layers, linear.kda_layers
    if not isinstance(layers, int):
        return None  # refused under its own name
    if full is None or delta is None:
        return [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]
    if sorted(full + delta) != list(range(1, layers + 1)):
        raise ConfigError(
            f"config.json: full_attn_layers={full} and kda_layers={delta} must name each of the {layers} layers once, "
            "counted from 1"
        )
    return [FULL if layer in full else LINEAR for layer in range(1, layers + 1)]


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layer = gated_delta_layer(config, config.rms_norm_eps)
    return in_linear_layers(replace(layer, has_decays_of_elements=True, rank=layer.value_dim), config)


KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    name="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    weight_names=replace(NAMES, others=(AS_SAVED,)),
    ropes=no_ropes,
    layer_types=(FULL, LINEAR),
    config=config,
    adapted=as_it_is,
    recurrent=recurrent,
    mtp=None,
)
