"""OLMoE: OLMo with RMS norms, norms of whole queries and keys, and experts in all layers."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from .expert_layers import in_all_layers
from .family import Family, renamed
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {}, num_experts=64, num_experts_per_tok=8, rms_norm_eps=1e-5)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, renormalises=config.norm_topk_prob))


NORM = QKNorm("all_heads")
OLMOE = Family("olmoe", ("OlmoeForCausalLM",), biases=biases, qk_norm=NORM, config=config, experts=experts)
