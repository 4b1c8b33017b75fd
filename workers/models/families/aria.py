"""Aria's text: as Llama with experts, weighed by a softmax of the chosen, and shared ones."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, biases_of_attention, need, renamed

LAYER = "model.layers.{}.mlp."
SHARED = f"{LAYER}shared_experts."
NAMES = ExpertNames(
    router=f"{LAYER}router",
    stacked_gate_up=f"{LAYER}experts.fc1.weight",
    stacked_down=f"{LAYER}experts.fc2.weight",
    are_transposed=True,
    shared_gate=f"{SHARED}gate_proj",
    shared_up=f"{SHARED}up_proj",
    shared_down=f"{SHARED}down_proj",
)
FIELDS = {
    "moe_num_experts": "num_experts",
    "moe_topk": "num_experts_per_tok",
    "moe_num_shared_experts": "n_shared_experts",
}
DEFAULTS = {"num_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Aria", fields, mlp_bias=False, hidden_act="silu")
    return renamed(fields, FIELDS, **DEFAULTS)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    shared = config.n_shared_experts * config.intermediate_size
    return in_all_layers(config, Experts(*sizes, "softmax_of_chosen", shared_size=shared))


ARIA = Family(
    name="aria_text",
    architectures=("AriaTextForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    biases=biases_of_attention,
    experts=experts,
    config=config,
)
