"""Nemotron-H and Nemotron 3: each layer is Mamba 2, attention without rotation, a feed-forward, or experts."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Part
from ...geometry.recurrent.recurrent import Recurrent
from ..names.weight_names import ExpertNames
from . import mamba2
from .family import FULL, Family, need, no_ropes, renamed
from .mamba2 import MIXER
from .mamba2_layers import LINEAR, OLDER, layer_of_heads, time_steps

DENSE, EXPERTS = "mlp", "moe"
LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": EXPERTS}  # of hybrid_override_pattern
SHARED = f"{MIXER}shared_experts."
NAMES = replace(
    mamba2.NAMES,
    query=f"{MIXER}q_proj",
    key=f"{MIXER}k_proj",
    value=f"{MIXER}v_proj",
    output=f"{MIXER}o_proj",
    up=f"{MIXER}up_proj",
    down=f"{MIXER}down_proj",
    experts=ExpertNames(
        router=f"{MIXER}gate",
        correction=f"{MIXER}gate.e_score_correction_bias",
        up=f"{MIXER}experts.{{}}.up_proj",
        down=f"{MIXER}experts.{{}}.down_proj",
        shared_up=f"{SHARED}up_proj",
        shared_down=f"{SHARED}down_proj",
    ),
    unused_prefixes=("mtp.",),  # layers that predict several tokens at once
)
FIELDS = {
    "layers_block_type": "layer_types",
    "mlp_hidden_act": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
    "mamba_dt_limit": "time_step_limit",
    "n_routed_experts": "num_experts",
    "num_local_experts": "num_experts",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
}
UNREAD = ("rms_norm_eps", "mamba_proj_bias", "hidden_act")  # fields of files that mean nothing in this family
DEFAULTS = {
    "hidden_act": "relu2",
    "rms_norm_eps": 1e-5,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "mamba_d_head": 64,
    "mamba_n_groups": 8,
    "mamba_d_state": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Nemotron-H", fields, mamba_hidden_act="silu", attention_bias=False, mlp_bias=False, n_shared_experts=1)
    need("Nemotron-H", fields, residual_in_fp32=False, block_configs=None)
    for name in ("moe_latent_size", "sliding_window"):
        if (value := fields.get(name)) is not None:
            raise ConfigError(f"config.json: {name}={value!r} is not supported for Nemotron-H; only null is")
    kept = {name: value for name, value in fields.items() if name not in UNREAD}
    found = renamed(time_steps(kept), FIELDS, **DEFAULTS)
    found["layer_types"] = kinds = _layer_kinds(found)
    return {"num_hidden_layers": len(kinds)} | found


def _layer_kinds(fields: dict[str, Any]) -> list[str]:
    """The kind of each layer, by `layer_types` or else by the letters of `hybrid_override_pattern`."""
    kinds = fields.get("layer_types")
    if kinds is None:
        pattern = fields.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or not pattern or set(pattern).difference(LETTERS):
            raise ConfigError(
                f"config.json: hybrid_override_pattern={pattern!r} must have a letter of {''.join(LETTERS)} for each "
                "layer, or layers_block_type a name"
            )
        return [LETTERS[letter] for letter in pattern]
    names = [OLDER.get(kind, kind) for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    if not names or len(names) < len(kinds):
        raise ConfigError(f"config.json: layers_block_type={kinds!r} must be a list with a name for each layer")
    return names


def lone_parts(config: HFConfig) -> tuple[Part, ...]:
    """Raises ConfigError if no layer keeps anything of earlier tokens."""
    parts: list[Part] = ["feed_forward" if kind in (DENSE, EXPERTS) else "mixer" for kind in config.layer_types or ()]
    if "mixer" not in parts:
        raise ConfigError(f"config.json: no layer of the model is {LINEAR} or {FULL}; at least one must be")
    return tuple(parts)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    if LINEAR not in (kinds := config.layer_types or ()):
        return ()
    if not isinstance(config.mamba_d_head, int):
        raise ConfigError(f"config.json: mamba_head_dim={config.mamba_d_head!r} must be a number")
    layer = layer_of_heads(config, config.mamba_d_head)
    return tuple(layer if kind == LINEAR else None for kind in kinds)


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    if EXPERTS not in (kinds := config.layer_types or ()):
        return ()
    if (shared_size := config.shared_expert_intermediate_size) < 1:
        raise ConfigError(f"config.json: moe_shared_expert_intermediate_size={shared_size} must be at least 1")
    of_layer = Experts(
        count=config.num_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        score="sigmoid",
        renormalises=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        groups=config.n_group,
        top_groups=config.topk_group,
        has_correction=True,
        shared_size=shared_size,
    )
    return tuple(of_layer if kind == EXPERTS else None for kind in kinds)


NEMOTRON_H = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    weight_names=NAMES,
    is_gated=False,
    ropes=no_ropes,
    layer_types=(LINEAR, FULL, DENSE, EXPERTS),
    config=config,
    experts=experts,
    recurrent=recurrent,
    lone_parts=lone_parts,
)
