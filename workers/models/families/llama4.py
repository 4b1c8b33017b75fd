"""Llama 4's text model: attention chunks in rotated layers, query scales in the others; experts in some layers."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ...geometry.rope_scaling import RopeScaling, Temperature
from ..names.weight_names import ExpertNames, WeightNames
from .family import FULL, Family, renamed, with_qk_norm
from .llama import biases
from .rope_config import rope_of

CHUNKED = "chunked_attention"  # of layer_types


def config(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"intermediate_size": "moe_intermediate_size", "intermediate_size_mlp": "intermediate_size"}
    names |= {"use_qk_norm": "qk_norm", "num_local_experts": "num_experts"}
    found = renamed(fields, names, qk_norm=True, num_experts=16, num_experts_per_tok=1)
    size = {"attention_chunk_size": fields.get("attention_chunk_size", 8192)}  # null: none
    return {"rms_norm_eps": 1e-5, "rope_theta": 500000.0} | found | size


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, "sigmoid", weighs_inputs=True, shared_size=config.moe_intermediate_size)
    step, layers = config.interleave_moe_layer_step, range(config.num_hidden_layers)
    chosen = layers[step - 1 :: step] if config.moe_layers is None else config.moe_layers
    return tuple(found if layer in chosen else None for layer in layers)


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


LAYER = "model.layers.{}.feed_forward."
NAMES = WeightNames(
    gate=f"{LAYER}gate_proj",
    up=f"{LAYER}up_proj",
    down=f"{LAYER}down_proj",
    experts=ExpertNames(
        router=f"{LAYER}router",
        gate=f"{LAYER}experts.{{}}.gate_proj",
        up=f"{LAYER}experts.{{}}.up_proj",
        down=f"{LAYER}experts.{{}}.down_proj",
        stacked_gate_up=f"{LAYER}experts.gate_up_proj",
        stacked_down=f"{LAYER}experts.down_proj",
        are_transposed=True,
        shared_gate=f"{LAYER}shared_expert.gate_proj",
        shared_up=f"{LAYER}shared_expert.up_proj",
        shared_down=f"{LAYER}shared_expert.down_proj",
    ),
)
LLAMA4 = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    qk_norm=QKNorm(kind="plain_rms"),
    interleaved=True,
    ropes=ropes,
    attention_chunks=attention_chunks,
    layer_types=(FULL, CHUNKED),
    config=config,
    adapted=with_qk_norm,
    experts=experts,
)
