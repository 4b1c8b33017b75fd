"""Qwen3-Next: most layers are gated delta nets; the others have attention with gates, and all have experts."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...checkpoint.recurrent.gated_delta import GatedDeltaLayer
from ...checkpoint.recurrent.recurrent import Recurrent
from ..names.mtp_names import QWEN_MTP_NAMES
from ..names.recurrent_names import GatedDeltaNames
from ..names.weight_names import WeightNames
from .family import FULL, Family, need, partial_rope_everywhere, renamed
from .mamba2_layers import LINEAR
from .qwen_moe import experts

NAMES = GatedDeltaNames(
    by_key_head="model.layers.{}.linear_attn.in_proj_qkvz",
    gates_by_key_head="model.layers.{}.linear_attn.in_proj_ba",
)
DEFAULTS = {
    "partial_rotary_factor": 0.25,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Qwen3-Next", fields, hidden_act="silu", attention_bias=False)
    return renamed(fields, {}, **DEFAULTS)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    sizes = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim
    layer = GatedDeltaLayer(config.linear_num_value_heads, config.linear_num_key_heads, *sizes)
    layer.check()
    layers = range(1, config.num_hidden_layers + 1)
    kinds = config.layer_types or [FULL if at % config.full_attention_interval == 0 else LINEAR for at in layers]
    return tuple(layer if kind == LINEAR else None for kind in kinds)


QWEN3_NEXT = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    weight_names=WeightNames(gated_delta=NAMES, unused_prefixes=("mtp.",)),
    norm="rms_less_1",
    qk_norm=True,
    default_head_dim=256,
    ropes=partial_rope_everywhere,
    layer_types=(FULL, LINEAR),
    config=config,
    experts=experts,
    recurrent=recurrent,
    has_gated_attention=True,
    mtp=QWEN_MTP_NAMES,
)
