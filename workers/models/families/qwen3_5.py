"""Qwen3.5, text: as Qwen3-Next, with separate projections of gated delta nets; dense or with experts."""

from dataclasses import replace
from typing import Any

from ..names.recurrent_names import GATED_DELTA_NAMES
from .family import need, none_in_any_layer, renamed
from .qwen3_next import QWEN3_NEXT, check

SHARED = {"partial_rotary_factor": 0.25}
DEFAULTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    check(fields, "Qwen3.5")
    need("Qwen3.5", fields, attn_output_gate=True)
    return renamed(fields, {}, **SHARED)


def config_moe(fields: dict[str, Any]) -> dict[str, Any]:
    """All layers have experts, so files have no `intermediate_size`."""
    need("Qwen3.5", fields, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    found = DEFAULTS | config(fields)
    return {"intermediate_size": found["moe_intermediate_size"], "norm_topk_prob": True} | found


QWEN3_5_MOE = replace(
    QWEN3_NEXT,
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    weight_names=replace(QWEN3_NEXT.weight_names, gated_delta=GATED_DELTA_NAMES),
    config=config_moe,
)
QWEN3_5 = replace(
    QWEN3_5_MOE,
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM",),
    config=config,
    experts=none_in_any_layer,
)
