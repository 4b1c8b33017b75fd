"""Mamba 2: every layer is a recurrence without attention or feed-forward."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from ..names.recurrent_names import Mamba2Names
from ..names.weight_names import WeightNames
from .family import Family, lone_mixers, need, no_ropes, renamed
from .mamba2_layers import mamba2_layer, time_steps

MIXER = "backbone.layers.{}.mixer."
NAMES = WeightNames(
    embedding="backbone.embeddings.weight",
    final_norm="backbone.norm_f.weight",
    attention_norm="backbone.layers.{}.norm.weight",
    mlp_norm="",
    down="",
    mamba2=Mamba2Names(
        into=f"{MIXER}in_proj",
        convolution=f"{MIXER}conv1d",
        a_log=f"{MIXER}A_log",
        d=f"{MIXER}D",
        dt_bias=f"{MIXER}dt_bias",
        norm=f"{MIXER}norm.weight",
        output=f"{MIXER}out_proj",
    ),
)
FIELDS = {
    "num_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
DEFAULTS = {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 8, "mamba_d_state": 128, "rms_norm_eps": 1e-5}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Mamba 2", fields, hidden_act="silu")
    found = renamed(time_steps(fields), FIELDS, **DEFAULTS, max_position_embeddings=1 << 20)
    # No layer has attention or a feed-forward: these sizes are not read.
    heads, size = found["mamba_n_heads"], found.get("hidden_size")
    return found | {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 64,
        "intermediate_size": size,
    }


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    return (mamba2_layer(config),) * config.num_hidden_layers


MAMBA2 = Family(
    name="mamba2",
    architectures=("Mamba2ForCausalLM",),
    weight_names=NAMES,
    ropes=no_ropes,
    layer_types=(),
    config=config,
    recurrent=recurrent,
    lone_parts=lone_mixers,
    usual_max_len=8192,
)
