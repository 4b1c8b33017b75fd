"""MiMo-V2-Flash: heads whose values are narrower than keys, windows with attention sinks and twice the KV heads.

Heads rotate in part; experts are chosen by corrected sigmoids, without a shared one. Published files name layers by
lists of numbers (hybrid_layer_pattern, moe_layer_freq), transformers by lists of kinds.
"""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .expert_layers import dense_layers, in_chosen_layers
from .family import FULL, MAX_LAYERS, SLIDING, Family, biases_of_qkv, layer_kinds, need, renamed, windows_by_pattern
from .rope_config import ropes_of_kinds

NAME = "MiMo-V2-Flash"
FIELDS = {"n_routed_experts": "num_experts", "num_local_experts": "num_experts", "layernorm_epsilon": "rms_norm_eps"}
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "attention_value_scale": 0.707,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "sliding_window": 129,
    "rms_norm_eps": 1e-5,
}
ROTATED = 0.334  # of a head


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need(NAME, fields, scoring_func="sigmoid", topk_method="noaux_tc", n_shared_experts=0)
    need(NAME, fields, add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    need(NAME, fields, attention_projection_layout="split", swa_num_attention_heads=fields.get("num_attention_heads"))
    found = renamed(fields, FIELDS, **DEFAULTS)
    need(NAME, fields, swa_head_dim=found["head_dim"], swa_v_head_dim=found["v_head_dim"])
    if fields.get("attention_value_scale", 0.0) is None:
        found["attention_value_scale"] = 1.0
    if isinstance(before := fields.get("sliding_window_size"), int):
        found["sliding_window"] = before + 1  # the token itself is not counted
    found.setdefault("swa_num_key_value_heads", _twice(found["num_key_value_heads"]))
    layers = _by_numbers(fields, "hybrid_layer_pattern", "layer_types", (FULL, SLIDING))
    layers |= _by_numbers(fields, "moe_layer_freq", "mlp_layer_types", ("dense", "sparse"))
    return found | _full_in_every_sixth(fields) | layers | dense_layers(fields | layers) | _ropes(found)


def _twice(count: Any) -> Any:
    return 2 * count if isinstance(count, int) else count


def _by_numbers(fields: dict[str, Any], numbers: str, kinds: str, names: tuple[str, str]) -> dict[str, Any]:
    """The field `kinds` from a list of 0 and 1, if the file has that instead."""
    if (given := fields.get(numbers)) is None or fields.get(kinds) is not None:
        return {}
    if not isinstance(given, list) or not all(each in (0, 1) for each in given):
        raise ConfigError(f"config.json: {numbers}={given!r} must be a list of 0 and 1")
    return {kinds: [names[each] for each in given]}


def _full_in_every_sixth(fields: dict[str, Any]) -> dict[str, Any]:
    """Without a list, the first layer and then every sixth have full attention."""
    layers = fields.get("num_hidden_layers")
    if fields.get("layer_types") is not None or not isinstance(layers, int):
        return {}
    return {"layer_types": [SLIDING if at and (at + 1) % 6 else FULL for at in range(min(layers, MAX_LAYERS))]}


def _ropes(fields: dict[str, Any]) -> dict[str, Any]:
    """The ropes of both kinds of layers, from `rope_parameters` or from the fields of published files."""
    if fields.get("rope_parameters") is not None:
        return {}
    share = {"partial_rotary_factor": fields.get("partial_rotary_factor", ROTATED)}
    of_full, of_windows = fields.get("rope_theta", 5e6), fields.get("swa_rope_theta", 1e4)
    return {"rope_parameters": {FULL: {"rope_theta": of_full} | share, SLIDING: {"rope_theta": of_windows} | share}}


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    defaults = {"partial_rotary_factor": ROTATED}
    return ropes_of_kinds(config, layer_kinds(config), allow_partial=True, defaults=defaults)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, "sigmoid", config.norm_topk_prob, config.routed_scaling_factor, has_correction=True)
    return in_chosen_layers(config, replace(found, groups=config.n_group, top_groups=config.topk_group))


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    of_windows = config.swa_num_key_value_heads
    if of_windows < 1 or geometry.num_heads % of_windows:
        raise ConfigError(
            f"config.json: {geometry.num_heads} attention heads cannot share {of_windows} KV heads of windows evenly"
        )
    if not 1 <= config.v_head_dim <= geometry.head_dim:
        raise ConfigError(f"config.json: v_head_dim={config.v_head_dim} must be from 1 to head_dim={geometry.head_dim}")
    counts = [of_windows if kind == SLIDING else geometry.num_kv_heads for kind in layer_kinds(config)]
    return replace(
        geometry.with_sizes_of_layers(num_kv_heads=counts),
        has_sinks_beyond_windows=False,
        value_dim=config.v_head_dim,
        value_scale=config.attention_value_scale,
    )


MIMO_V2 = Family(
    name="mimo_v2",
    architectures=("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
    weight_names=WeightNames(
        sinks="model.layers.{}.self_attn.attention_sink_bias",
        unused_prefixes=("model.mtp.",),
    ),
    biases=biases_of_qkv,
    sliding_windows=windows_by_pattern,
    ropes=ropes,
    experts=experts,
    config=config,
    refined=refined,
)
