"""Mamba 1: every layer is a selective scan without attention or feed-forward."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ..names.recurrent_names import Mamba1Names
from ..names.weight_names import WeightNames
from .family import Family, lone_mixers, need, no_ropes, renamed
from .mamba1_layers import mamba1_layer

MIXER = "backbone.layers.{}.mixer."
NAMES = WeightNames(
    embedding="backbone.embeddings.weight",
    final_norm="backbone.norm_f.weight",
    attention_norm="backbone.layers.{}.norm.weight",
    mlp_norm="",
    down="",
    mamba1=Mamba1Names(
        into=f"{MIXER}in_proj",
        convolution=f"{MIXER}conv1d",
        parts=f"{MIXER}x_proj",
        steps=f"{MIXER}dt_proj",
        a_log=f"{MIXER}A_log",
        d=f"{MIXER}D",
        output=f"{MIXER}out_proj",
    ),
)
FIELDS = {
    "intermediate_size": "mamba_intermediate_size",
    "state_size": "mamba_d_state",
    "time_step_rank": "mamba_dt_rank",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
DEFAULTS = {"mamba_d_state": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
UNREAD = ("num_attention_heads", "num_key_value_heads", "head_dim")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Mamba", fields, hidden_act="silu")
    kept = {name: value for name, value in fields.items() if name not in UNREAD}
    found = renamed(kept, FIELDS, **DEFAULTS, max_position_embeddings=1 << 20)
    # No layer has attention or a feed-forward: these sizes are not read.
    return found | {"num_attention_heads": 64, "head_dim": 64, "intermediate_size": found.get("hidden_size")}


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    return (mamba1_layer(config, "none"),) * config.num_hidden_layers


MAMBA = Family(
    name="mamba",
    architectures=("MambaForCausalLM",),
    weight_names=NAMES,
    ropes=no_ropes,
    layer_types=(),
    config=config,
    recurrent=recurrent,
    lone_parts=lone_mixers,
    usual_max_len=8192,
)
