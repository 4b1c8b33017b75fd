"""Jamba: most layers are Mamba 1 with norms of their time steps, b and c; the others have attention without rotation.

Layers have experts or a dense feed-forward, alternately in the published models.
"""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.recurrent.recurrent import Recurrent
from ..names.weight_names import ExpertNames, WeightNames
from .family import Family, need, no_ropes, renamed
from .mamba1_layers import mamba1_layer

LAYER = "model.layers.{}."
FEED_FORWARD = f"{LAYER}feed_forward."
NAMES = WeightNames(
    final_norm="model.final_layernorm.weight",
    mlp_norm=f"{LAYER}pre_ff_layernorm.weight",
    gate=f"{FEED_FORWARD}gate_proj",
    up=f"{FEED_FORWARD}up_proj",
    down=f"{FEED_FORWARD}down_proj",
    experts=ExpertNames(
        router=f"{FEED_FORWARD}router",
        gate=f"{FEED_FORWARD}experts.{{}}.gate_proj",
        up=f"{FEED_FORWARD}experts.{{}}.up_proj",
        down=f"{FEED_FORWARD}experts.{{}}.down_proj",
        stacked_gate_up=f"{FEED_FORWARD}experts.gate_up_proj",
        stacked_down=f"{FEED_FORWARD}experts.down_proj",
    ),
)
DEFAULTS = {"mamba_d_state": 16, "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Jamba", fields, hidden_act="silu")
    return renamed(fields, {"num_local_experts": "num_experts"}, **DEFAULTS) | {"layer_types": None}


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    layer = mamba1_layer(config, "weighted", config.rms_norm_eps)
    every, first = _turns("attn_layer", config.attn_layer_period, config.attn_layer_offset)
    return tuple(None if index % every == first else layer for index in range(config.num_hidden_layers))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    every, first = _turns("expert_layer", config.expert_layer_period, config.expert_layer_offset)
    if config.num_experts == 1:  # a dense feed-forward
        return ()
    found = Experts(config.num_experts, config.num_experts_per_tok, config.intermediate_size)
    return tuple(found if index % every == first else None for index in range(config.num_hidden_layers))


def _turns(name: str, period: int, offset: int) -> tuple[int, int]:
    if offset >= period:
        raise ConfigError(f"config.json: {name}_offset={offset} must be less than {name}_period={period}")
    return period, offset


JAMBA = Family(
    name="jamba",
    architectures=("JambaForCausalLM",),
    weight_names=NAMES,
    ropes=no_ropes,
    layer_types=(),
    config=config,
    experts=experts,
    recurrent=recurrent,
)
