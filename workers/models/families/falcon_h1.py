"""Falcon-H1: attention and Mamba 2 read the same input in every layer; factors of the parts; Bamba's feed-forward."""

from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from ...geometry.recurrent.mamba2 import Gating
from ...geometry.recurrent.multipliers import PartMultipliers
from ...geometry.recurrent.recurrent import Recurrent
from .bamba import NAMES
from .family import Family, need, renamed
from .mamba2_layers import layer_of_heads, time_steps

DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "mamba_d_ssm": 1024,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Falcon-H1", fields, hidden_act="silu", attention_bias=False, mlp_bias=False)
    need("Falcon-H1", fields, projectors_bias=False, mamba_proj_bias=False)
    found = renamed(time_steps(fields), {"attn_rotary_emb": "rotary_dim"}, **DEFAULTS)
    if fields.get("mamba_d_ssm", 0) is None:
        found["mamba_d_ssm"] = None
    own = {name: found[name] for name in PartMultipliers.__struct_fields__ if name in found}
    return found | {"part_multipliers": own, "layer_types": None}


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    heads, inner = config.mamba_n_heads, config.mamba_d_ssm
    inner = config.mamba_expand * config.hidden_size if inner is None else inner
    head_dim = inner // heads if config.mamba_d_head == "auto" and heads > 0 else config.mamba_d_head
    if not isinstance(head_dim, int) or heads * head_dim != inner:
        raise ConfigError(
            f"config.json: {heads} Mamba 2 heads of {head_dim} elements are not the mamba_d_ssm={inner} of a layer"
        )
    with_norm: Gating = "after_norm" if config.mamba_norm_before_gate else "before_norm"
    layer = replace(layer_of_heads(config, head_dim), gating=with_norm if config.mamba_rms_norm else "alone")
    return (layer,) * config.num_hidden_layers


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    parts, head_dim = config.part_multipliers, config.head_dim or config.hidden_size // config.num_attention_heads
    scores = parts.scores / head_dim**0.5
    return Multipliers(config.embedding_multiplier, 1.0, config.lm_head_multiplier, scores, parts)


FALCON_H1 = Family(
    name="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    weight_names=NAMES,
    multipliers=multipliers,
    config=config,
    recurrent=recurrent,
    is_beside_attention=True,
)
