"""Mellum 2: as Qwen3 with experts; layers have windows or are dense by lists, and a rope for each kind of attention."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling
from .expert_layers import dense_layers
from .family import FULL, SLIDING, layer_kinds, renamed, windows_by_pattern
from .qwen_moe import QWEN3_MOE
from .rope_config import ropes_of_kinds

ROPES = {FULL: {"rope_theta": 5e5}, SLIDING: {"rope_theta": 1e4}}
DEFAULTS = {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 896,
    "norm_topk_prob": True,
    "num_key_value_heads": 4,
    "sliding_window": 1024,
    "rope_parameters": ROPES,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"num_local_experts": "num_experts"}, **DEFAULTS)
    return found | {"decoder_sparse_step": 1, "mlp_only_layers": []} | dense_layers(fields)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return ropes_of_kinds(config, layer_kinds(config))


MELLUM = replace(
    QWEN3_MOE,
    name="mellum",
    architectures=("MellumForCausalLM",),
    weight_names=replace(QWEN3_MOE.weight_names, unused_prefixes=("mtp.",)),
    sliding_windows=windows_by_pattern,
    ropes=ropes,
    config=config,
)
