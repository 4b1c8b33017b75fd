"""Llama 4's text model with dense feed-forwards: attention chunks in rotated layers, and query scales in the others."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.geometry import RopeScaling, Temperature
from ...checkpoint.hf_config import HFConfig, rope_of
from .family import FULL, Family, WeightNames, renamed
from .llama import biases

CHUNKED = "chunked_attention"  # of layer_types
EXPERTS = "config.json: experts are not supported for Llama 4; only models with moe_layers=[] are"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("moe_layers") != []:
        raise ConfigError(EXPERTS)
    found = renamed(fields, {"intermediate_size_mlp": "intermediate_size", "use_qk_norm": "qk_norm"}, qk_norm=True)
    size = {"attention_chunk_size": fields.get("attention_chunk_size", 8192)}
    return {"rms_norm_eps": 1e-5, "rope_theta": 500000.0} | found | size


def are_rotated(config: HFConfig) -> list[bool]:
    layers = config.num_hidden_layers
    rotated = config.no_rope_layers or [(layer + 1) % config.no_rope_layer_interval for layer in range(layers)]
    if len(rotated) < layers:
        raise ConfigError(f"config.json: no_rope_layers has {len(rotated)} entries, but the model {layers} layers")
    return [bool(is_rotated) for is_rotated in rotated[:layers]]


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """The ropes of the layers. Of a scaled rope only the frequencies matter: the norm after it undoes any factor."""
    unrotated = RopeScaling("none")
    if config.attn_temperature_tuning:
        unrotated = replace(unrotated, temperature=Temperature(config.attn_scale, config.floor_scale))
    return tuple(rope_of(config) if is_rotated else unrotated for is_rotated in are_rotated(config))


def attention_chunks(config: HFConfig) -> tuple[int, ...]:
    kinds = config.layer_types or [CHUNKED if is_rotated else FULL for is_rotated in are_rotated(config)]
    if config.attention_chunk_size is None and CHUNKED in kinds:
        raise ConfigError(f"config.json: attention_chunk_size=null, but layers have {CHUNKED}; it must be at least 1")
    return tuple((config.attention_chunk_size or 0) if kind == CHUNKED else 0 for kind in kinds)


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, qk_norm=config.qk_norm)


LAYER = "model.layers.{}.feed_forward."
LLAMA4 = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM",),
    weight_names=WeightNames(gate=f"{LAYER}gate_proj", up=f"{LAYER}up_proj", down=f"{LAYER}down_proj"),
    biases=biases,
    qk_norm_kind="plain_rms",
    interleaved=True,
    ropes=ropes,
    attention_chunks=attention_chunks,
    layer_types=(FULL, CHUNKED),
    config=config,
    adapted=adapted,
)
