"""Gemma 4, text only: as Gemma 3, with larger heads in layers with full attention, norms of values, scalars of layers.

The small models have inputs of single layers, and last layers that read the keys and values of earlier ones. In the
large ones values are keys before norm and rotation, in layers with full attention; one has experts beside the
feed-forward.
"""

from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ...geometry.layer_options import LayerInputs
from ...geometry.model_options import Caps, Multipliers
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import ExpertNames
from . import gemma, gemma3
from .family import FULL, SLIDING, Family, layer_kinds, need, renamed, windows_by_pattern
from .rope_config import ropes_of_kinds

PATTERN = 6  # every n-th layer has full attention, if layer_types is absent
ROPES: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
LAYER = "model.layers.{}."
EXPERTS = ExpertNames(
    router=f"{LAYER}router.proj",
    factors=f"{LAYER}router.per_expert_scale",
    router_norm=f"{LAYER}router.scale",
    gate=f"{LAYER}experts.{{}}.gate_proj",
    up=f"{LAYER}experts.{{}}.up_proj",
    down=f"{LAYER}experts.{{}}.down_proj",
    stacked_gate_up=f"{LAYER}experts.gate_up_proj",
    stacked_down=f"{LAYER}experts.down_proj",
    norm=f"{LAYER}pre_feedforward_layernorm_2.weight",
    out_norm=f"{LAYER}post_feedforward_layernorm_2.weight",
    dense_norm=f"{LAYER}pre_feedforward_layernorm.weight",
    dense_out_norm=f"{LAYER}post_feedforward_layernorm_1.weight",
)


UNIFIED = "Gemma4UnifiedForCausalLM"  # of 12B, whose fields have other defaults


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names. As in transformers, the last layer has full attention whatever `layer_types` says."""
    need("Gemma 4", fields, attention_bias=False, attn_logit_softcapping=None, use_bidirectional_attention="vision")
    defaults = {"sliding_window": 512, "head_dim": 256, "rope_parameters": ROPES, "sliding_window_pattern": PATTERN}
    if fields.get("architectures") == [UNIFIED]:
        defaults |= {"sliding_window": 1024, "hidden_size_per_layer_input": 0}
    names = {"top_k_experts": "num_experts_per_tok", "expert_intermediate_size": "moe_intermediate_size"}
    found = renamed(fields, names, **defaults)
    found["use_bidirectional_attention"] = False  # text is causal in models where only images are not
    if isinstance(kinds := found.get("layer_types"), list) and kinds:
        found["layer_types"] = [*kinds[:-1], FULL]
    return gemma.config(found)


def kinds_of(config: HFConfig) -> list[str]:
    return [*layer_kinds(config)[:-1], FULL]


def windows(config: HFConfig) -> tuple[int, ...]:
    return (*windows_by_pattern(config)[:-1], 0)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return ropes_of_kinds(config, kinds_of(config))


def multipliers(config: HFConfig, dtype: torch.dtype) -> Multipliers:
    return replace(gemma.multipliers(config, dtype), scores=1.0)


def caps(config: HFConfig) -> Caps:
    return Caps(logits=config.final_logit_softcapping or 0.0)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    if not config.enable_moe_block:
        return ()
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    each = Experts(*sizes, renormalises=True, has_factors=True, is_beside_dense=True)
    return (each,) * config.num_hidden_layers


def adapted(family: Family, config: HFConfig) -> Family:
    """With experts, the parts of the feed-forward have norms of their own."""
    if not config.enable_moe_block:
        return family
    return replace(family, weight_names=replace(family.weight_names, mlp_norm=""))


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    kinds = kinds_of(config)
    sources = kv_sources(config, kinds)
    wide = [config.use_double_wide_mlp and source != layer for layer, source in enumerate(sources)]
    kv_heads, head_dims = zip(*head_sizes(config), strict=True)
    sizes = [config.intermediate_size * (1 + is_wide) for is_wide in wide]
    has_inputs = config.hidden_size_per_layer_input > 0
    if has_inputs and config.vocab_size_per_layer_input < config.vocab_size:
        raise ConfigError(
            f"config.json: vocab_size_per_layer_input={config.vocab_size_per_layer_input} must be at least "
            f"vocab_size={config.vocab_size}: each token has inputs of the layers"
        )
    return replace(
        geometry.with_sizes_of_layers(num_kv_heads=kv_heads, head_dim=head_dims, intermediate_size=sizes),
        kv_sources=sources if config.num_kv_shared_layers else (),
        has_value_norm=True,
        layers_with_one_kv_matrix=frozenset(
            layer for layer, kind in enumerate(kinds) if config.attention_k_eq_v and kind == FULL
        ),
        layer_inputs=LayerInputs(config.hidden_size_per_layer_input, config.vocab_size_per_layer_input)
        if has_inputs
        else None,
        has_layer_scalars=True,
    )


def head_sizes(config: HFConfig) -> list[tuple[int, int]]:
    """The number of KV heads and the size of heads, by layer. transformers writes per_layer_config instead of the
    fields of published files."""
    kv_heads, head_dim = config.num_key_value_heads or config.num_attention_heads, config.head_dim or 256
    if config.per_layer_config is not None:
        given = [config.per_layer_config.get(str(layer), {}) for layer in range(config.num_hidden_layers)]
    else:
        of_full: dict[str, Any] = {"head_dim": config.global_head_dim}
        if config.attention_k_eq_v and config.num_global_key_value_heads is not None:
            of_full["num_key_value_heads"] = config.num_global_key_value_heads
        given = [of_full if kind == FULL else {} for kind in kinds_of(config)]
    if unknown := sorted({name for each in given for name in each}.difference(("head_dim", "num_key_value_heads"))):
        raise ConfigError(
            f"config.json: per_layer_config has {unknown[0]}, which is not supported; only sizes of heads are"
        )
    sizes = [(each.get("num_key_value_heads", kv_heads), each.get("head_dim", head_dim)) for each in given]
    for count, size in sizes:
        if not isinstance(count, int) or count < 1 or config.num_attention_heads % count:
            raise ConfigError(
                f"config.json: {config.num_attention_heads} attention heads cannot share {count} KV heads"
            )
        if not isinstance(size, int) or size < 2 or size % 2:
            raise ConfigError(f"config.json: a head of {size} elements cannot be rotated in pairs")
    return sizes


def kv_sources(config: HFConfig, kinds: list[str]) -> tuple[int, ...]:
    """Per layer: that whose keys and values it reads, the last one of the layer's kind that has its own."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    last = {kind: layer for layer, kind in enumerate(kinds[: max(0, first)])}
    if missing := [kind for kind in kinds if kind not in last]:
        raise ConfigError(
            f"config.json: num_kv_shared_layers={config.num_kv_shared_layers} leaves no layer with {missing[0]} whose "
            "keys and values the last layers could read; lower it"
        )
    return (*range(first), *(last[kind] for kind in kinds[first:]))


GEMMA4 = replace(
    gemma3.GEMMA3,
    name="gemma4",
    architectures=("Gemma4ForCausalLM", UNIFIED),
    weight_names=replace(gemma3.GEMMA3.weight_names, experts=EXPERTS),
    norm="rms",
    sliding_windows=windows,
    ropes=ropes,
    multipliers=multipliers,
    caps=caps,
    experts=experts,
    config=config,
    adapted=adapted,
    refined=refined,
)
