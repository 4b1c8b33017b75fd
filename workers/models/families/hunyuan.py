"""HunYuan V1, dense and with experts: query and key norms after the rotation, whose base may be stretched."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_all_layers
from .family import Family, need, positive, renamed
from .llama import biases

LAYER = "model.layers.{}."
SHARED = f"{LAYER}mlp.shared_mlp."
EXPERTS = ExpertNames(
    router=f"{LAYER}mlp.gate.wg",
    shared_gate=f"{SHARED}gate_proj",
    shared_up=f"{SHARED}up_proj",
    shared_down=f"{SHARED}down_proj",
)
NAMES = WeightNames(
    query_norm=f"{LAYER}self_attn.query_layernorm.weight",
    key_norm=f"{LAYER}self_attn.key_layernorm.weight",
    experts=EXPERTS,
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("HunYuan", fields, use_qk_norm=True, use_cla=False, use_mla=False, mlp_bias=False)
    found = renamed(fields, {}, rms_norm_eps=1e-5, max_position_embeddings=2048)
    if found.get("head_dim") is None and found.get("attention_head_dim") is not None:
        found["head_dim"] = found["attention_head_dim"]
    ropes = [name for name in ("rope_scaling", "rope_parameters") if isinstance(found.get(name), dict)]
    return found | {name: _with_stretched_base(found, found[name]) for name in ropes}


def _with_stretched_base(found: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters with a fixed `alpha` instead of a factor stretch the base, whatever the length of a text."""
    if not rope.get("alpha") or "dynamic" not in (rope.get("rope_type"), rope.get("type")):
        return rope
    head_dim = found.get("head_dim") or positive(found, "hidden_size") // positive(found, "num_attention_heads")
    head_dim = positive({"head_dim": head_dim}, "head_dim")
    if head_dim < 4:
        raise ConfigError(f"config.json: head_dim={head_dim:g} must be at least 4, with alpha in the rotary parameters")
    theta = rope.get("rope_theta") or found.get("rope_theta") or 10000.0
    base = positive({"rope_theta": theta}, "rope_theta") * positive(rope, "alpha") ** (head_dim / (head_dim - 2))
    return {"rope_type": "default", "rope_theta": base}


def config_moe(fields: dict[str, Any]) -> dict[str, Any]:
    lists = ("moe_topk", "num_experts", "num_shared_expert", "moe_intermediate_size")
    found = fields | {name: _of_all_layers(name, fields[name]) for name in lists if name in fields}
    need("HunYuan MoE", found, num_shared_expert=1, moe_layer_num_skipped=0)
    need("HunYuan MoE", found, moe_intermediate_size=found.get("intermediate_size"))
    names = {"moe_topk": "num_experts_per_tok", "num_local_experts": "num_experts"}
    return config(renamed(found, names, num_experts=1, num_experts_per_tok=1))


def _of_all_layers(name: str, value: Any) -> Any:
    """The value of a field that may be a list with a value for each layer."""
    if not isinstance(value, list):
        return value
    if not value or any(each != value[0] for each in value):
        raise ConfigError(
            f"config.json: {name}={value} is not supported for HunYuan MoE; all layers must have one value"
        )
    return value[0]


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, renormalises=True, shared_size=size)
    return in_all_layers(config, found)


HUNYUAN = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    qk_norm=QKNorm(kind="plain_rms", weighs_rotated_heads=True),
    config=config,
)
HUNYUAN_MOE = replace(
    HUNYUAN,
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    config=config_moe,
    experts=experts,
)
