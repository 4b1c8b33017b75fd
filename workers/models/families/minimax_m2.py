"""MiniMax-M2: experts chosen by corrected sigmoids, norms of whole queries and keys, and partial rotation."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, need, partial_rope_everywhere, renamed
from .glm4_moe import without_later_layers

LAYER = "model.layers.{}.block_sparse_moe."
NAMES = ExpertNames(
    router=f"{LAYER}gate",
    correction=f"{LAYER}e_score_correction_bias",
    gate=f"{LAYER}experts.{{}}.w1",
    up=f"{LAYER}experts.{{}}.w3",
    down=f"{LAYER}experts.{{}}.w2",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("MiniMax-M2", fields, use_qk_norm=True, qk_norm_type="per_layer", scoring_func="sigmoid")
    need("MiniMax-M2", fields, use_routing_bias=True, shared_intermediate_size=0, attention_bias=False)
    need("MiniMax-M2", fields, sliding_window=None, layernorm_full_attention_beta=1.0, layernorm_mlp_beta=1.0)
    kinds = fields.get("attn_type_list")
    need("MiniMax-M2", fields, attn_type_list=[1] * len(kinds) if isinstance(kinds, list) else None)  # 1: softmax
    sizes = {"num_experts": 256, "num_experts_per_tok": 8, "head_dim": 128, "num_key_value_heads": 8}
    names = {"num_local_experts": "num_experts", "num_mtp_modules": "num_nextn_predict_layers"}
    return renamed(fields, names, rope_theta=5e6, **sizes)


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, weight_names=without_later_layers(family.weight_names, config))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, "sigmoid", renormalises=True, has_correction=True))


MINIMAX_M2 = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    qk_norm=QKNorm("all_heads"),
    ropes=partial_rope_everywhere,
    config=config,
    adapted=adapted,
    experts=experts,
)
