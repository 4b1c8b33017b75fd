"""Command A+, North Mini: as Command R7B, with experts, of which a shared one; the first layers may be dense."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import ExpertNames, WeightNames
from . import cohere
from .expert_layers import dense_layers, in_chosen_layers
from .family import FULL, SLIDING, Family, layer_kinds, need, renamed
from .rope_config import rope_of

SHARED = "model.layers.{}.mlp.shared_experts."
NAMES = ExpertNames(shared_gate=f"{SHARED}gate_proj", shared_up=f"{SHARED}up_proj", shared_down=f"{SHARED}down_proj")
DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "rope_theta": 1e4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "sliding_window_pattern": 4,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in common names; `intermediate_size` is that of experts, and of dense layers without a size of their
    own. Norms are RMS norms if `rms_norm_eps` is given."""
    need("Command A+", fields, use_qk_norm=False, use_parallel_block=True, use_gated_activation=True)
    has_rms_norm, size = fields.get("rms_norm_eps") is not None, fields.get("intermediate_size")
    if has_rms_norm:
        fields = {name: value for name, value in fields.items() if name != "layer_norm_eps"}
    found = renamed(fields, {"num_shared_experts": "n_shared_experts"}, **DEFAULTS)
    found |= {"moe_intermediate_size": size, "intermediate_size": found.get("prefix_dense_intermediate_size", size)}
    return cohere.config(found | _layer_types(found) | dense_layers(fields)) | {"has_rms_norm": has_rms_norm}


def _layer_types(fields: dict[str, Any]) -> dict[str, Any]:
    """Without `layer_types`, every n-th layer has full attention, among the first, dense ones and among the others."""
    patterns = fields.get("prefix_dense_sliding_window_pattern", 1), fields["sliding_window_pattern"]
    layers, first = fields.get("num_hidden_layers"), fields.get("first_k_dense_replace", 0)
    if fields.get("layer_types") is not None or not isinstance(layers, int) or not isinstance(first, int):
        return {}
    if not all(isinstance(pattern, int) and pattern > 0 for pattern in patterns) or not 0 <= first <= layers:
        raise ConfigError(
            f"config.json: prefix_dense_sliding_window_pattern={patterns[0]} and sliding_window_pattern={patterns[1]} "
            f"must be at least 1, first_k_dense_replace={first} from 0 to num_hidden_layers={layers}"
        )
    counts = zip((first, layers - first), patterns, strict=True)
    kinds = [FULL if at % pattern == 0 else SLIDING for count, pattern in counts for at in range(1, count + 1)]
    return {"layer_types": kinds}


def experts(config: HFConfig) -> tuple[Experts | None, ...]:
    size, is_sigmoid = config.moe_intermediate_size, config.expert_selection_fn == "sigmoid"
    averages = config.n_shared_experts > 0 and config.shared_expert_combination_strategy == "average"
    found = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        size,
        "sigmoid" if is_sigmoid else "softmax_of_chosen",
        renormalises=is_sigmoid and config.norm_topk_prob,
        scale=0.5 if averages else 1.0,
        shared_size=config.n_shared_experts * size,
        shared_as="mean" if averages else "sum",
    )
    return in_chosen_layers(config, found)


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    """As in Command R7B, but dense layers are rotated, too, if all of them have full attention."""
    all_dense_full = config.prefix_dense_sliding_window_pattern == 1
    are_dense = [each is None for each in experts(config)]
    return tuple(
        rope_of(config) if (kind == SLIDING and config.sliding_window) or (is_dense and all_dense_full) else NO_ROPE
        for kind, is_dense in zip(layer_kinds(config), are_dense, strict=True)
    )


def adapted(family: Family, config: HFConfig) -> Family:
    return replace(family, norm="rms") if config.has_rms_norm else family


NO_ROPE = RopeScaling("none")
COHERE2_MOE = replace(
    cohere.COHERE2,
    name="cohere2_moe",
    architectures=("Cohere2MoeForCausalLM",),
    weight_names=WeightNames(mlp_norm="", experts=NAMES),
    qk_norm=None,
    ropes=ropes,
    config=config,
    experts=experts,
    adapted=adapted,
)
