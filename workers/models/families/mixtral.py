"""Mixtral: Mistral with experts in all layers."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, renamed
from .mistral import sliding_window_everywhere

LAYER = "model.layers.{}.block_sparse_moe."
NAMES = ExpertNames(
    router=f"{LAYER}gate",
    gate=f"{LAYER}experts.{{}}.w1",
    up=f"{LAYER}experts.{{}}.w3",
    down=f"{LAYER}experts.{{}}.w2",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"num_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    return renamed(fields, {"num_local_experts": "num_experts"}, **defaults)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, renormalises=True))


MIXTRAL = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    sliding_windows=sliding_window_everywhere,
    config=config,
    experts=experts,
)
