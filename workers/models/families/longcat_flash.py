"""LongCat-Flash: layers of two halves, each with latent attention and a dense feed-forward.

The first half's feed-forward has experts beside it, whose output is added at the end of the second. Some experts are
identities.
"""

import math
from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.layer_options import Latent
from ...geometry.model_options import Multipliers
from ..names.weight_names import ExpertNames, LatentNames, WeightNames
from . import latent_sizes
from .deepseek import DEEPSEEK_V2, LATENT
from .family import as_it_is, need, positive, renamed

FIELDS = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "moe_topk": "num_experts_per_tok",
    "n_routed_experts": "num_experts",
    "expert_ffn_hidden_size": "moe_intermediate_size",
}
DEFAULTS = {
    "num_experts": 512,
    "zero_expert_num": 256,
    "num_experts_per_tok": 12,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 6.0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e7,
}
NEEDED = {
    "attention_bias": False,
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "rope_interleave": True,
    "router_bias": False,
    "zero_expert_type": "identity",
}


class HalfName(str):
    """A name in the half of a layer, where the decoder has a layer for each half."""

    __slots__ = ()

    def format(self, *args: Any, **_: Any) -> str:
        """The name for the decoder's layer, the first of `args`; the others stand for `{}`."""
        layer, half = divmod(args[0], 2)
        return super().format(*args[1:], layer=layer, half=half)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("LongCat-Flash", fields, **NEEDED)
    found = latent_sizes.sized(renamed(fields, FIELDS, **DEFAULTS), fields, *LATENT)
    positive(found, "q_lora_rank")
    if isinstance(layers := fields.get("num_layers"), int):
        found["num_hidden_layers"] = 2 * layers
    if all(isinstance(found[name], int) for name in latent_sizes.SIZES):
        need("LongCat-Flash's heads", fields, qk_head_dim=found["qk_nope_head_dim"] + found["qk_rope_head_dim"])
    return found


def multipliers(config: HFConfig, _: Any) -> Multipliers:
    scale = latent_sizes.scale_of_scores(config) * math.sqrt(config.hidden_size / (config.q_lora_rank or 1))
    return Multipliers(scores=scale)


def latent(config: HFConfig) -> Latent:
    sizes = latent_sizes.latent(config)
    return replace(sizes, norm_scale=math.sqrt(config.hidden_size / sizes.kv_rank))


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    found = Experts(*sizes, scale=config.routed_scaling_factor, has_correction=True)
    whole = replace(found, identities=config.zero_expert_num, is_added_later=True)
    return (whole, None) * (config.num_hidden_layers // 2)


LAYER = "model.layers.{layer}."
ATTENTION, DENSE, EXPERTS = f"{LAYER}self_attn.{{half}}.", f"{LAYER}mlps.{{half}}.", f"{LAYER}mlp."
NAMES = WeightNames(
    attention_norm=HalfName(f"{LAYER}input_layernorm.{{half}}.weight"),
    mlp_norm=HalfName(f"{LAYER}post_attention_layernorm.{{half}}.weight"),
    output=HalfName(f"{ATTENTION}o_proj"),
    gate=HalfName(f"{DENSE}gate_proj"),
    up=HalfName(f"{DENSE}up_proj"),
    down=HalfName(f"{DENSE}down_proj"),
    latent=LatentNames(
        query_down=HalfName(f"{ATTENTION}q_a_proj"),
        query_norm=HalfName(f"{ATTENTION}q_a_layernorm.weight"),
        query_up=HalfName(f"{ATTENTION}q_b_proj"),
        down=HalfName(f"{ATTENTION}kv_a_proj_with_mqa"),
        norm=HalfName(f"{ATTENTION}kv_a_layernorm.weight"),
        up=HalfName(f"{ATTENTION}kv_b_proj"),
    ),
    experts=ExpertNames(
        router=HalfName(f"{EXPERTS}router.classifier"),
        correction=HalfName(f"{EXPERTS}router.e_score_correction_bias"),
        gate=HalfName(f"{EXPERTS}experts.{{}}.gate_proj"),
        up=HalfName(f"{EXPERTS}experts.{{}}.up_proj"),
        down=HalfName(f"{EXPERTS}experts.{{}}.down_proj"),
        stacked_gate_up=HalfName(f"{EXPERTS}experts.gate_up_proj"),
        stacked_down=HalfName(f"{EXPERTS}experts.down_proj"),
    ),
    unused_prefixes=("model.mtp.",),
)
LONGCAT_FLASH = replace(
    DEEPSEEK_V2,
    name="longcat_flash",
    architectures=("LongcatFlashForCausalLM",),
    weight_names=NAMES,
    config=config,
    multipliers=multipliers,
    adapted=as_it_is,
    interleaved=True,
    experts=experts,
    latent=latent,
)
