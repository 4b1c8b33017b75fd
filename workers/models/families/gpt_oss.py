"""gpt-oss: attention sinks, sliding windows in every other layer, biases, and experts with a clamped gate."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, biases_of_attention, renamed, windows_by_pattern

LAYER = "model.layers.{}."
NAMES = ExpertNames(router=f"{LAYER}mlp.router", are_transposed=True, are_interleaved=True)
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"num_local_experts": "num_experts"}
    sizes = {"num_experts": 128, "num_experts_per_tok": 4, "head_dim": 64, "num_key_value_heads": 8}
    found = renamed(
        fields, names, sliding_window=128, attention_bias=True, rms_norm_eps=1e-5, rope_theta=150000.0, **sizes
    )
    if not found.keys() & {"rope_scaling", "rope_parameters"}:
        found["rope_parameters"] = YARN | {"original_max_position_embeddings": 4096}
    return found | {"hidden_act": "clamped", "sliding_window_pattern": 2}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, "softmax_of_chosen", router_bias=True, biases=True))


GPT_OSS = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    weight_names=WeightNames(experts=NAMES, sinks=f"{LAYER}self_attn.sinks"),
    biases=biases_of_attention,
    sliding_windows=windows_by_pattern,
    config=config,
    experts=experts,
)
