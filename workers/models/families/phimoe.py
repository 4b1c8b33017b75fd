"""Phi-3.5-MoE: layer norms, and experts chosen by the sparse mixer in all layers."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from .expert_layers import in_all_layers
from .family import Family, renamed
from .mistral import sliding_window_everywhere
from .mixtral import NAMES


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"num_experts": 16, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "router_jitter_noise": 0.01}
    names = {"num_local_experts": "num_experts", "lm_head_bias": "head_bias"}
    return _with_factor(renamed(fields, names, **defaults))


def _with_factor(fields: dict[str, Any]) -> dict[str, Any]:
    """The factor of rotated heads, which this family gives as two numbers."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name)
        if not isinstance(rope, dict) or "long_mscale" not in rope:
            continue
        if rope["long_mscale"] != rope.get("short_mscale"):
            raise ConfigError(f"config.json: {name} has unequal long_mscale and short_mscale, which is not supported")
        fields = fields | {name: rope | {"attention_factor": rope["long_mscale"]}}
    return fields


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, head=config.head_bias)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, "sparse_mixer", jitter=config.router_jitter_noise))


PHIMOE = Family(
    name="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    weight_names=WeightNames(experts=NAMES),
    biases=biases,
    norm="layer",
    sliding_windows=sliding_window_everywhere,
    config=config,
    experts=experts,
)
