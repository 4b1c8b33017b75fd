"""Zamba2: layers of Mamba 2; at some of them a block of attention and a feed-forward, which layers share, comes before.

Such a layer is two of the decoder: a use of the block, then the Mamba 2 layer.
"""

import math
from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ...geometry.layer_options import SharedBlocks
from ...geometry.model_options import Multipliers
from ..names.weight_names import NormNames, WeightNames
from .family import FULL, Family, lone_mixers, need, no_ropes, renamed, rope_everywhere
from .mamba2_layers import LINEAR, OLDER, by_layer_type

HYBRID = "hybrid"  # a value of layers_block_type
BLOCK = "model.layers.{}.shared_transformer."
GATE_UP = f"{BLOCK}feed_forward.gate_up_proj"
NAMES = WeightNames(
    final_norm="model.final_layernorm.weight",
    attention_norm=f"{BLOCK}input_layernorm.weight",
    recurrent_norms=NormNames("model.layers.{}.input_layernorm.weight", ""),
    mlp_norm=f"{BLOCK}pre_ff_layernorm.weight",
    query=f"{BLOCK}self_attn.q_proj",
    key=f"{BLOCK}self_attn.k_proj",
    value=f"{BLOCK}self_attn.v_proj",
    output=f"{BLOCK}self_attn.o_proj",
    gate=GATE_UP,
    up=GATE_UP,
    down=f"{BLOCK}feed_forward.down_proj",
)
FIELDS = {
    "n_mamba_heads": "mamba_n_heads",
    "mamba_ngroups": "mamba_n_groups",
    "add_bias_linear": "mamba_proj_bias",
    "attention_head_dim": "head_dim",
}
DEFAULTS = {
    "mamba_n_heads": 8,
    "mamba_d_state": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
EPS = 1e-5  # of the norms of Mamba 2's gates, whatever config.json says


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Zamba2", fields, add_bias_linear=False, use_conv_bias=True, use_long_context=False, rms_norm_eps=EPS)
    need("Zamba2", fields, tie_word_embeddings=True)  # without it, transformers has a block for each use
    found = renamed(fields, FIELDS, **DEFAULTS)
    size, heads = found.get("hidden_size"), found.get("num_attention_heads")
    if isinstance(size, int) and isinstance(heads, int) and heads > 0:
        need("Zamba2", fields, attention_head_dim=2 * size // heads, attention_hidden_size=2 * size)
        found |= {"head_dim": 2 * size // heads, "intermediate_size": found.get("intermediate_size", 4 * size)}
    kinds = found.pop("layers_block_type", None) or found.pop("layer_types", None)
    found["layer_types"], found["layers_in_names"] = _layers(fields, kinds)
    return found | {
        "num_hidden_layers": len(found["layer_types"]),
        "mamba_d_head": "auto",
        "time_step_limit": [found.get("time_step_min", 0.001), math.inf],
        "partial_rotary_factor": None,
        "rotary_dim": None,
        "alibi": False,
    }


def _layers(fields: dict[str, Any], kinds: Any) -> tuple[list[str], list[int | str]]:
    """The kind of each layer of the decoder, and what stands for it in names."""
    names = [OLDER.get(kind, kind) for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    if not names or len(names) != len(kinds) or not {LINEAR, HYBRID}.issuperset(names) or HYBRID not in names:
        raise ConfigError(
            f"config.json: layers_block_type={kinds!r} must be a list of mamba and hybrid, which has both"
        )
    need("Zamba2", fields, num_hidden_layers=len(names))
    of_decoder, in_names = list[str](), list[int | str]()
    for layer, kind in enumerate(names):
        of_decoder += [FULL, LINEAR] if kind == HYBRID else [LINEAR]
        in_names += [layer, f"{layer}.mamba_decoder"] if kind == HYBRID else [layer]
    return of_decoder, in_names


def adapted(family: Family, config: HFConfig) -> Family:
    """Some files have a block once more for each of its uses."""
    layers = zip(config.layers_in_names or (), config.layer_types or (), strict=True)
    uses = [layer for layer, kind in layers if kind == FULL]
    later = tuple(BLOCK.format(layer) for layer in uses[config.num_mem_blocks :])
    ropes = rope_everywhere if config.use_mem_rope else no_ropes
    return replace(family, weight_names=replace(family.weight_names, unused_prefixes=later), ropes=ropes)


def multipliers(config: HFConfig, _: Any) -> Multipliers:
    return Multipliers(scores=(config.hidden_size / config.num_attention_heads) ** -0.5)


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    for name in ("num_mem_blocks", "adapter_rank"):
        if (value := getattr(config, name)) < 1:
            raise ConfigError(f"config.json: {name}={value} must be at least 1")
    blocks = SharedBlocks(config.num_mem_blocks, config.adapter_rank, config.use_shared_attention_adapter)
    return replace(geometry, shared_blocks=blocks, layers_in_names=tuple(config.layers_in_names or ()))


ZAMBA2 = Family(
    name="zamba2",
    architectures=("Zamba2ForCausalLM",),
    weight_names=NAMES,
    layer_types=(FULL, LINEAR),
    multipliers=multipliers,
    config=config,
    adapted=adapted,
    recurrent=by_layer_type,
    lone_parts=lone_mixers,
    refined=refined,
)
