"""The tensors of GGUF architectures with recurrent layers."""

from .tensor_layout import WHOLE, TensorLayout, as_filters, as_vector
from .usual_names import ATTENTION, EXPERTS, LLAMA, MIXTRAL_EXPERTS

_LFM2 = ATTENTION | {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_LFM2_WHOLE = {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"}
_FILTERS = {"shortconv.conv.weight": as_filters}


def _mamba(mixer: str) -> dict[str, str]:
    """Modules of both versions; the vector D has no ending, and A is -exp(A_log)."""
    modules = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_out": "out_proj", "ssm_norm": "norm"}
    return {name: f"{mixer}.{module}" for name, module in {**modules, "ssm_a": "A", "ssm_d": "D"}.items()}


def _mamba1(mixer: str) -> dict[str, str]:
    more = {"ssm_x": "x_proj", "ssm_dt": "dt_proj", "ssm_dt_norm": "dt_layernorm"}
    more |= {"ssm_b_norm": "b_layernorm", "ssm_c_norm": "c_layernorm"}
    return _mamba(mixer) | {name: f"{mixer}.{module}" for name, module in more.items()}


def _mamba2(mixer: str) -> dict[str, str]:
    return _mamba(mixer) | {"ssm_dt.bias": f"{mixer}.dt_bias"}


_MAMBA1_SHAPES = {"ssm_conv1d.weight": as_filters}
_MAMBA2_SHAPES = {
    "ssm_conv1d.weight": as_filters,
    "ssm_a": as_vector,
    "ssm_d": as_vector,
    "ssm_norm.weight": as_vector,
}
_BACKBONE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
_LONE_MIXERS = {"attn_norm": "norm"}
_GRANITE_HYBRID = (
    LLAMA
    | _mamba2("mamba")
    | {
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        **{f"ffn_{each}": f"shared_mlp.{each}_proj" for each in ("gate", "up", "down")},
        **{f"ffn_{each}_shexp": f"shared_mlp.{each}_proj" for each in ("gate", "up", "down")},
    }
)
_SHARED = {each: f"model.layers.{{}}.shared_mlp.{each}_proj" for each in ("gate", "up", "down")}
_JAMBA = (
    LLAMA
    | _mamba1("mamba")
    | {
        "ffn_norm": "pre_ff_layernorm",
        "ffn_gate_inp": "feed_forward.router",
        **{f"ffn_{each}": f"feed_forward.{each}_proj" for each in ("gate", "up", "down")},
    }
)
_FALCON_H1 = (
    LLAMA
    | _mamba2("mamba")
    | {
        "ffn_norm": "pre_ff_layernorm.weight",  # without an ending
        **{f"ffn_{each}": f"feed_forward.{each}_proj" for each in ("gate", "up", "down")},
    }
)
_NEMOTRON_H = _mamba2("mixer") | {
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    # Of a layer for multi-token prediction, which is not read.
    "nextn.eh_proj": "mtp.eh_proj",
    "nextn.enorm": "mtp.enorm",
    "nextn.hnorm": "mtp.hnorm",
    "nextn.shared_head_norm": "mtp.norm",
    "post_attention_norm": "mtp.post_attention_norm",
}
_NEMOTRON = TensorLayout(
    _NEMOTRON_H,
    whole=_BACKBONE,
    layer="backbone.layers.{}.",
    experts={"ffn_up_exps": "mixer.experts.{}.up_proj", "ffn_down_exps": "mixer.experts.{}.down_proj"},
    are_rows_interleaved=True,  # without need, as heads are not rotated
    reshaped=_MAMBA2_SHAPES,
    further="mtp.layers.{}.",
)
_MINIMAX = LLAMA | {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_gate": "self_attn.output_gate",
    "attn_norm_2": "self_attn.norm",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
RECURRENT_LAYOUTS = {
    "minimax-01": TensorLayout(
        _MINIMAX, experts=MIXTRAL_EXPERTS, own_names={"lightning.output": "model.layers.{}.self_attn.o_proj"}
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
    "lfm2": TensorLayout(_LFM2, whole=_LFM2_WHOLE, reshaped=_FILTERS),
    "lfm2moe": TensorLayout(
        _LFM2 | {"ffn_gate_inp": "feed_forward.gate", "exp_probs_b.bias": "feed_forward.expert_bias"},
        whole=_LFM2_WHOLE,
        experts={
            "ffn_gate_exps": "feed_forward.experts.{}.w1",
            "ffn_up_exps": "feed_forward.experts.{}.w3",
            "ffn_down_exps": "feed_forward.experts.{}.w2",
        },
        reshaped=_FILTERS,
    ),
    "granitehybrid": TensorLayout(
        _GRANITE_HYBRID,
        experts=EXPERTS,
        are_rows_interleaved=True,
        reshaped=_MAMBA2_SHAPES,
        own_names={**_SHARED, **{f"experts.shared_{each}": name for each, name in _SHARED.items()}},
    ),
    "falcon-h1": TensorLayout(
        _FALCON_H1, whole=WHOLE | {"output_norm": "model.final_layernorm"}, reshaped=_MAMBA2_SHAPES
    ),
    "jamba": TensorLayout(
        _JAMBA,
        whole=WHOLE | {"output_norm": "model.final_layernorm"},
        experts={f"ffn_{each}_exps": f"feed_forward.experts.{{}}.{each}_proj" for each in ("gate", "up", "down")},
        reshaped=_MAMBA1_SHAPES,
    ),
    "mamba": TensorLayout(
        _mamba1("mixer") | _LONE_MIXERS, whole=_BACKBONE, layer="backbone.layers.{}.", reshaped=_MAMBA1_SHAPES
    ),
    "mamba2": TensorLayout(
        _mamba2("mixer") | _LONE_MIXERS, whole=_BACKBONE, layer="backbone.layers.{}.", reshaped=_MAMBA2_SHAPES
    ),
}
