"""GLM-4.5 and 4.6: experts chosen by corrected sigmoids, within groups; a shared expert; the first layers are dense."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.model_options import QKNorm
from ..names.mtp_names import MTP_NAMES
from ..names.weight_names import ExpertNames, WeightNames
from .expert_layers import in_chosen_layers
from .family import Family, biases_of_qkv, partial_rope_everywhere, renamed, with_qk_norm

SHARED = "model.layers.{}.mlp.shared_experts."
NAMES = ExpertNames(shared_gate=f"{SHARED}gate_proj", shared_up=f"{SHARED}up_proj", shared_down=f"{SHARED}down_proj")


def config(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"n_routed_experts": "num_experts", "use_qk_norm": "qk_norm"}
    sizes = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1}
    found = renamed(fields, names, norm_topk_prob=True, first_k_dense_replace=1, partial_rotary_factor=0.5, **sizes)
    return {"rms_norm_eps": 1e-5} | found


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size = config.moe_intermediate_size
    found = Experts(config.num_experts, config.num_experts_per_tok, size, "sigmoid", config.norm_topk_prob)
    groups = replace(found, groups=config.n_group, top_groups=config.topk_group, has_correction=True)
    whole = replace(groups, scale=config.routed_scaling_factor, shared_size=size * config.n_shared_experts)
    return in_chosen_layers(config, whole)


def without_later_layers(names: WeightNames, config: HFConfig) -> WeightNames:
    """Layers beyond the last predict several tokens at once; only heads read them (MtpNames)."""
    beyond = range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_predict_layers)
    return replace(names, unused_prefixes=tuple(f"model.layers.{layer}." for layer in beyond))


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(with_qk_norm(family, config), weight_names=without_later_layers(family.weight_names, config))


GLM4_MOE = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    weight_names=WeightNames(experts=NAMES),
    biases=biases_of_qkv,
    qk_norm=QKNorm(),
    ropes=partial_rope_everywhere,
    config=config,
    adapted=adapted,
    experts=experts,
    mtp=MTP_NAMES,
)
