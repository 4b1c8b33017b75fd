"""DBRX: layer norms without biases, clipped queries, keys and values, and experts in all layers."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, need, renamed

FIELDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
}
ATTENTION_FIELDS = {"kv_n_heads": "num_key_value_heads", "clip_qkv": "clip_qkv", "rope_theta": "rope_theta"}
FEED_FORWARD_FIELDS = {
    "ffn_hidden_size": "intermediate_size",
    "moe_num_experts": "num_experts",
    "moe_top_k": "num_experts_per_tok",
}
DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 1,
    "intermediate_size": 3584,
    "num_experts": 4,
    "num_experts_per_tok": 1,
}
NORMALISED = "moe_normalize_expert_weights"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    attention, feed_forward = (_object(fields, name) for name in ("attn_config", "ffn_config"))
    need("DBRX", feed_forward, **{NORMALISED: 1})
    _check_theta(attention.get("rope_theta"), _object(fields, "rope_parameters").get("rope_theta"))
    parts = _chosen(attention, ATTENTION_FIELDS) | _chosen(feed_forward, FEED_FORWARD_FIELDS)
    activation = _object(feed_forward, "ffn_act_fn").get("name", "silu")
    found = renamed(fields, FIELDS, **DEFAULTS) | parts | {"hidden_act": activation}
    # Null means that the weights are not divided by their sum, unlike an absent field.
    return found | {"norm_topk_prob": feed_forward.get(NORMALISED, 1) is not None}


def _check_theta(published: Any, newer: Any) -> None:
    """Raises ConfigError if the two places of theta differ: newer files may have a default in one of them."""
    if None not in (published, newer) and published != newer:
        raise ConfigError(
            f"config.json: attn_config has rope_theta={published}, but rope_parameters has {newer}; keep the one that "
            "the model was trained with"
        )


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(found := fields.get(name) or {}, dict):
        raise ConfigError(f"config.json: {name}={found!r} must be an object")
    return found


def _chosen(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names[name]: value for name, value in fields.items() if name in names and value is not None}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    sizes = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    return in_all_layers(config, Experts(*sizes, renormalises=config.norm_topk_prob))


LAYER = "transformer.blocks.{}."
ATTENTION, EXPERTS = f"{LAYER}norm_attn_norm.", f"{LAYER}ffn.experts."
QKV = f"{ATTENTION}attn.Wqkv"
DBRX = Family(
    name="dbrx",
    architectures=("DbrxForCausalLM",),
    weight_names=WeightNames(
        embedding="transformer.wte.weight",
        final_norm="transformer.norm_f.weight",
        attention_norm=f"{ATTENTION}norm_1.weight",
        mlp_norm=f"{ATTENTION}norm_2.weight",
        query=QKV,
        key=QKV,
        value=QKV,
        output=f"{ATTENTION}attn.out_proj",
        experts=ExpertNames(
            router=f"{LAYER}ffn.router.layer",
            gate=f"{EXPERTS}{{}}.w1",
            up=f"{EXPERTS}{{}}.v1",
            down=f"{EXPERTS}{{}}.w2",
            stacked_gate_up=f"{EXPERTS}mlp.w1",
            stacked_up=f"{EXPERTS}mlp.v1",
            stacked_down=f"{EXPERTS}mlp.w2",
        ),
    ),
    norm="unbiased_layer",
    config=config,
    experts=experts,
)
