"""The fields of config.json that models with recurrent layers have besides those of all GGUF models."""

from typing import Any

from ...model import GgufModel
from ..layers import FULL, feed_forward_lengths
from .dense import multipliers
from .experts import SIGMOID, counts, expert_size, rows

LINEAR = "linear_attention"


def lfm2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    kinds = [FULL if heads else "conv" for heads in model.kv_heads()]
    width = model.whole("shortconv.l_cache")
    return {"layer_types": kinds, "conv_L_cache": width, "conv_bias": False, "block_auto_adjust_ff_dim": False}


def lfm2_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    dense = model.whole("leading_dense_block_count", 0)
    count, used = counts(model, SIGMOID)
    return lfm2(model, head_dim) | {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": expert_size(model, dense),
        "num_dense_layers": dense,
        "norm_topk_prob": True,
        "use_expert_bias": model.tensor(f"blk.{dense}.exp_probs_b.bias") is not None,
    }


def minimax_01(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The layers with one matrix of queries, keys and values are lightning attention."""
    count, used = counts(model)
    for name in ("attention.recurrent_layers", "full_attention_interval"):
        model.key(name)  # says what the tensors do
    linear = [model.tensor(f"blk.{layer}.attn_qkv.weight") is not None for layer in range(model.num_layers())]
    alphas = dict.fromkeys(("full_attn", "linear_attn", "mlp"), model.number("residual_scale"))
    return {
        **{f"{part}_alpha_factor": alpha for part, alpha in alphas.items()},
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "intermediate_size": expert_size(model),
        "layer_types": [LINEAR if each else FULL for each in linear],
        "sliding_window": None,
    }


def granite_hybrid(model: GgufModel, head_dim: int) -> dict[str, Any]:
    heads, groups, first = model.kv_heads(), model.whole("ssm.group_count"), "ffn_gate"
    if model.whole("expert_count", 0):
        count, used = counts(model)
        own = {
            "num_local_experts": count,
            "num_experts_per_tok": used,
            "intermediate_size": expert_size(model),
        }
        first = "ffn_gate_shexp"
    else:
        own = {"num_local_experts": 0, "num_experts_per_tok": model.whole("expert_used_count", 0)}
    return {
        **own,
        "shared_intermediate_size": rows(model, first),
        "layer_types": ["attention" if each else "mamba" for each in heads],
        "position_embedding_type": "rope" if model.truth("rope.scaling.finetuned", True) else "nope",
        **_mamba2(model, heads.index(0) if 0 in heads else 0),
        "mamba_n_groups": groups,
        "mamba_expand": _expansion(model),
        "attention_bias": False,
        **multipliers(model, head_dim),
    }


def falcon_h1(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """The factors of its parts are multiplied into the weights of files."""
    return {
        **_mamba2(model, 0),
        "mamba_n_groups": model.whole("ssm.group_count"),
        "mamba_d_ssm": model.whole("ssm.inner_size"),
        "mamba_rms_norm": model.tensor("blk.0.ssm_norm.weight") is not None,
        "mamba_norm_before_gate": False,
    }


def mamba(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Mamba 1, or FalconMamba if parts have norms without weights."""
    names = {}
    if model.truth("ssm.dt_b_c_rms", False):
        names = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    return names | {
        "intermediate_size": model.whole("ssm.inner_size"),
        "state_size": model.whole("ssm.state_size"),
        "time_step_rank": model.whole("ssm.time_step_rank"),
        "conv_kernel": model.whole("ssm.conv_kernel"),
        "use_bias": model.tensor("blk.0.ssm_in.bias") is not None,
        "use_conv_bias": model.tensor("blk.0.ssm_conv1d.bias") is not None,
    }


def mamba2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    found = _mamba2(model, 0)
    return {
        "num_heads": found["mamba_n_heads"],
        "head_dim": found["mamba_d_head"],
        "n_groups": model.whole("ssm.group_count"),
        "state_size": found["mamba_d_state"],
        "conv_kernel": found["mamba_d_conv"],
        "expand": _expansion(model),
        "use_bias": found["mamba_proj_bias"],
        "use_conv_bias": found["mamba_conv_bias"],
    }


def jamba(model: GgufModel, head_dim: int) -> dict[str, Any]:
    layers = range(model.num_layers())
    every, first = _turns(model, "attention", [bool(heads) for heads in model.kv_heads()])
    own: dict[str, Any] = {"num_experts": 1, "num_experts_per_tok": 1}
    if model.whole("expert_count", 0) > 1:
        count, used = counts(model, norm=False)
        have = [model.tensor(f"blk.{layer}.ffn_gate_inp.weight") is not None for layer in layers]
        period, offset = _turns(model, "experts", have)
        own = {"num_experts": count, "num_experts_per_tok": used}
        own |= {"expert_layer_period": period, "expert_layer_offset": offset}
    recurrent = next((layer for layer in layers if not model.kv_heads()[layer]), 0)
    model.whole("expert_used_count", 0)
    return own | {
        "attn_layer_period": every,
        "attn_layer_offset": first,
        "mamba_d_state": model.whole("ssm.state_size"),
        "mamba_d_conv": model.whole("ssm.conv_kernel"),
        "mamba_dt_rank": model.whole("ssm.time_step_rank"),
        "mamba_expand": _expansion(model),
        "mamba_proj_bias": model.tensor(f"blk.{recurrent}.ssm_in.bias") is not None,
        "mamba_conv_bias": model.tensor(f"blk.{recurrent}.ssm_conv1d.bias") is not None,
    }


def _mamba2(model: GgufModel, layer: int) -> dict[str, Any]:
    """The sizes of Mamba 2; `layer` is the first that has it."""
    heads, inner = model.whole("ssm.time_step_rank"), model.whole("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise model.refused(f"ssm.time_step_rank={heads} heads do not divide the ssm.inner_size={inner}")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_state": model.whole("ssm.state_size"),
        "mamba_d_conv": model.whole("ssm.conv_kernel"),
        "mamba_proj_bias": model.tensor(f"blk.{layer}.ssm_in.bias") is not None,
        "mamba_conv_bias": model.tensor(f"blk.{layer}.ssm_conv1d.bias") is not None,
    }


def _expansion(model: GgufModel) -> int:
    inner, hidden_size = model.whole("ssm.inner_size"), model.whole("embedding_length")
    if inner % max(hidden_size, 1):
        raise model.refused(f"ssm.inner_size={inner} is not a multiple of embedding_length={hidden_size}")
    return inner // max(hidden_size, 1)


def _turns(model: GgufModel, what: str, layers: list[bool]) -> tuple[int, int]:
    """The period and the offset of the layers that are True. Raises ConfigError if they have none."""
    chosen = [layer for layer, is_chosen in enumerate(layers) if is_chosen]
    if chosen:
        period = chosen[1] - chosen[0] if len(chosen) > 1 else len(layers)
        if period > chosen[0] and chosen == list(range(chosen[0], len(layers), period)):
            return period, chosen[0]
    raise model.refused(f"its layers with {what}, {chosen[:20]}, are not regular")


def nemotron_h(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Each layer is Mamba 2 (M), attention without rotation (*), experts (E) or a feed-forward (-), by its tensors."""
    layers = range(model.num_layers())
    parts = {"ssm_in": "M", "attn_q": "*", "ffn_gate_inp": "E", "ffn_up": "-"}
    letters = ""
    for layer in layers:
        found = [letter for name, letter in parts.items() if model.tensor(f"blk.{layer}.{name}.weight") is not None]
        if not found:
            raise model.refused(f"layer {layer} has none of the tensors {', '.join(parts)}")
        letters += found[0]
    feed_forward_lengths(model)
    mamba = _mamba2(model, letters.find("M") if "M" in letters else 0)
    own = {
        "hybrid_override_pattern": letters,
        "num_key_value_heads": max(model.kv_heads()) or 1,
        "intermediate_size": rows(model, "ffn_up", letters.index("-")) if "-" in letters else 1,
        "mamba_num_heads": mamba["mamba_n_heads"],
        "mamba_head_dim": mamba["mamba_d_head"],
        "n_groups": model.whole("ssm.group_count"),
        "ssm_state_size": mamba["mamba_d_state"],
        "conv_kernel": mamba["mamba_d_conv"],
        "use_conv_bias": mamba["mamba_conv_bias"],
        "use_bias": mamba["mamba_proj_bias"],
    }
    if "E" in letters:
        return own | _nemotron_experts(model, letters.index("E"))
    for name in ("count", "used_count", "weights_norm", "weights_scale", "group_count", "group_used_count"):
        model.key(f"expert_{name}")  # defaults of the format, which mean nothing without experts
    return own


def _nemotron_experts(model: GgufModel, layer: int) -> dict[str, Any]:
    norm = model.truth("expert_weights_norm", True)
    count, used = counts(model, SIGMOID, norm=norm, may_scale=True)
    groups = model.whole("expert_group_count", 0) or 1
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": rows(model, "ffn_up_exps", layer),
        "n_shared_experts": model.whole("expert_shared_count", 1),
        "moe_shared_expert_intermediate_size": rows(model, "ffn_up_shexp", layer),
        "n_group": groups,
        "topk_group": model.whole("expert_group_used_count", 0) or groups,
        "norm_topk_prob": norm,
        "routed_scaling_factor": model.number("expert_weights_scale", 0.0) or 1.0,
    }


def qwen35(model: GgufModel, head_dim: int) -> dict[str, Any]:
    heads, inner = model.whole("ssm.time_step_rank"), model.whole("ssm.inner_size")
    if heads < 1 or inner % heads:
        raise model.refused(f"ssm.time_step_rank={heads} heads do not divide the ssm.inner_size={inner}")
    return {
        "layer_types": _kinds(model),
        "linear_conv_kernel_dim": model.whole("ssm.conv_kernel"),
        "linear_key_head_dim": model.whole("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": model.whole("ssm.group_count"),
        "linear_num_value_heads": heads,
    }


def qwen_moe(model: GgufModel, head_dim: int) -> dict[str, Any]:
    """Qwen3-Next, and Qwen3.5 with experts."""
    count, used = counts(model)
    sizes = {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": expert_size(model)}
    sizes["shared_expert_intermediate_size"] = rows(model, "ffn_gate_shexp")
    return qwen35(model, head_dim) | sizes | {"norm_topk_prob": True}


def _kinds(model: GgufModel) -> list[str]:
    """Of each layer, by a list or a period in the file."""
    layers, key = model.num_layers(), "attention.recurrent_layers"
    period = model.whole("full_attention_interval", 4)
    if isinstance(model.metadata.values.get(model.key(key)), list):
        are_linear = [bool(each) for each in model.numbers(key)]
        if len(are_linear) < layers:
            raise model.refused(f"{key} has {len(are_linear)} entries for {layers} layers")
    elif period < 1:
        raise model.refused(f"full_attention_interval={period} must be at least 1")
    else:
        are_linear = [(layer + 1) % period != 0 for layer in range(layers)]
    return [LINEAR if each else FULL for each in are_linear[:layers]]
