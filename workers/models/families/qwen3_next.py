"""Qwen3-Next: most layers are gated delta nets; the others have attention with gates, and all have experts."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import QKNorm
from ...geometry.recurrent.recurrent import Recurrent
from ..names.mtp_names import QWEN_MTP_NAMES
from ..names.recurrent_names import GatedDeltaNames
from ..names.weight_names import WeightNames
from .family import FULL, Family, need, partial_rope_everywhere, renamed
from .gated_delta_layers import gated_delta_layer, in_linear_layers
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


def check(fields: dict[str, Any], model: str) -> None:
    """Raises ConfigError for values that no kernel supports."""
    need(model, fields, hidden_act="silu", attention_bias=False, layer_scale=False)
    if fields.get("output_gate_type") != "swish":  # another name of it
        need(model, fields, output_gate_type="silu")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    check(fields, "Qwen3-Next")
    return renamed(fields, {}, **DEFAULTS)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    return in_linear_layers(gated_delta_layer(config, config.rms_norm_eps), config)


QWEN3_NEXT = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    weight_names=WeightNames(gated_delta=NAMES, unused_prefixes=("mtp.",)),
    norm="rms_less_1",
    qk_norm=QKNorm(),
    default_head_dim=256,
    ropes=partial_rope_everywhere,
    layer_types=(FULL, LINEAR),
    config=config,
    experts=experts,
    recurrent=recurrent,
    attention_gate="sigmoid",
    mtp=QWEN_MTP_NAMES,
)
