"""JetMoe: mixtures of attention heads, which share keys and values, and of feed-forwards."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, need, renamed

FIELDS = {"kv_channels": "head_dim", "num_local_experts": "num_experts", "activation_function": "hidden_act"}
DEFAULTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
EPS = 1e-6  # of the norms of layers; config.json has that of the last
ATTENTION, FEED_FORWARD = "model.layers.{}.self_attention.", "model.layers.{}.mlp."


def names_of(part: str) -> ExpertNames:
    return ExpertNames(
        router=f"{part}router.layer",
        gate=f"{part}experts.{{}}.gate",
        up=f"{part}experts.{{}}.up",
        down=f"{part}experts.{{}}.down",
        stacked_gate_up=f"{part}input_linear.weight",
        stacked_down=f"{part}output_linear.weight",
        bias=f"{part}bias",
    )


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("JetMoe", fields, attention_bias=False)
    found = renamed(fields, FIELDS, **DEFAULTS)
    # Each of a token's experts has a query for each KV head.
    return found | {
        "num_attention_heads": found["num_key_value_heads"],
        "final_norm_eps": found.get("rms_norm_eps", EPS),
    }


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    return in_all_layers(config, _experts_of(config, config.intermediate_size))


def _experts_of(config: HFConfig, size: int) -> Experts:
    return Experts(config.num_experts, config.num_experts_per_tok, size, "softmax_of_chosen", has_common_bias=True)


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    of_attention = _experts_of(config, geometry.num_kv_heads * geometry.head_dim)
    return replace(geometry, norm_eps=EPS, final_norm_eps=config.final_norm_eps, attention_experts=of_attention)


JETMOE = Family(
    name="jetmoe",
    architectures=("JetMoeForCausalLM",),
    weight_names=WeightNames(
        key=f"{ATTENTION}kv_proj",
        value=f"{ATTENTION}kv_proj",
        experts=names_of(FEED_FORWARD),
        attention_experts=names_of(f"{ATTENTION}experts."),
    ),
    config=config,
    experts=experts,
    refined=refined,
)
