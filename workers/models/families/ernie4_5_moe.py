"""ERNIE 4.5 with experts, chosen by corrected softmaxes, and shared experts; the first layers are dense."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import WeightNames
from . import glm4_moe
from .ernie4_5 import ERNIE4_5
from .expert_layers import in_chosen_layers
from .family import need, no_biases, renamed

FIELDS = {
    "moe_num_experts": "num_experts",
    "moe_k": "num_experts_per_tok",
    "moe_num_shared_experts": "n_shared_experts",
    "moe_layer_start_index": "first_k_dense_replace",
    "moe_layer_interval": "decoder_sparse_step",
}
DEFAULTS = {
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1536,
    "moe_layer_end_index": -1,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
CORRECTION = "model.layers.{}.mlp.moe_statics.e_score_correction_bias"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ERNIE 4.5 MoE", fields, use_bias=False, moe_norm_min=1e-12, moe_use_aux_free=True, moe_gate="topk")
    need("ERNIE 4.5 MoE", fields, moe_gate_act="softmax")
    found = renamed(fields, FIELDS, **DEFAULTS)
    last, layers = found["moe_layer_end_index"], found.get("num_hidden_layers")
    if not (isinstance(last, int) and isinstance(layers, int)):
        raise ConfigError(f"config.json: moe_layer_end_index={last!r}, num_hidden_layers={layers!r} must be numbers")
    return found | {"mlp_only_layers": [] if last == -1 else list(range(last + 1, layers))}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, renormalises=True, has_correction=True)
    return in_chosen_layers(config, replace(found, shared_size=size * config.n_shared_experts))


ERNIE4_5_MOE = replace(
    ERNIE4_5,
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    weight_names=WeightNames(
        experts=replace(glm4_moe.NAMES, correction=CORRECTION),
        unused_prefixes=("model.mtp_",),  # of layers that predict several tokens at once
    ),
    biases=no_biases,
    config=config,
    experts=experts,
)
