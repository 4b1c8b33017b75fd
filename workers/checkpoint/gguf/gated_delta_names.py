"""The tensors of GGUF architectures with gated delta nets."""

from dataclasses import replace

from .row_orders import Kind
from .split_latent import LATENT
from .split_latent import WHOLE as KV_B
from .tensor_layout import WHOLE, TensorLayout, as_filters, as_row, as_vector
from .usual_names import EXPERTS, HEAD_NORMS, LLAMA, MIXTRAL_EXPERTS, NORM_AFTER_ATTENTION, SHARED_EXPERT

_DELTA = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
# A layer for multi-token prediction, beyond the decoder's last.
_FURTHER = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}
_QWEN = NORM_AFTER_ATTENTION | HEAD_NORMS | _DELTA | _FURTHER
_QWEN_MOE = _QWEN | SHARED_EXPERT | {"ffn_gate_inp": "mlp.gate"}
_SHAPES = {"ssm_conv1d.weight": as_filters, "ffn_gate_inp_shexp.weight": as_row}
_TILED: dict[str, Kind] = {
    "attn_qkv.weight": "after_keys",
    "ssm_conv1d.weight": "after_keys",
    "attn_gate.weight": "values",
    "ssm_beta.weight": "heads",
    "ssm_alpha.weight": "heads",
    "ssm_a": "heads",
    "ssm_dt.bias": "heads",
}
_BOTH: tuple[tuple[str, Kind], ...] = (
    ("linear_attn.in_proj_b.weight", "b_of_both"),
    ("linear_attn.in_proj_a.weight", "alpha_of_both"),
)
_KIMI = {
    **{f"ssm_conv1d_{each}": f"self_attn.{each}_conv1d" for each in "qkv"},
    **{f"ssm_{each}": f"self_attn.{each}_proj" for each in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_a": "self_attn.A",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ssm_norm": "self_attn.o_norm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
    **{f"ffn_{each}_shexp": f"block_sparse_moe.shared_experts.{each}_proj" for each in ("gate", "up", "down")},
}
_KIMI_SHAPES = {f"ssm_conv1d_{each}.weight": as_filters for each in "qkv"} | {"ssm_a": as_vector}
_BAILING = {
    "attn_norm": "input_layernorm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.dense",
    "attn_gate": "attention.g_proj",
    "attn_q_a": "attention.q_a_proj",
    "attn_q_a_norm": "attention.q_a_layernorm",
    "attn_q_b": "attention.q_b_proj",
    "attn_kv_a_mqa": "attention.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "attention.kv_a_layernorm",
    **{name: LATENT[name] for name in ("attn_kv_b", "attn_k_b", "attn_v_b")},
    **{f"ssm_conv1d_{each}": f"attention.{each}_conv1d" for each in "qkv"},
    "ssm_f_a": "attention.f_proj",
    "ssm_g_a": "attention.g_proj",
    "ssm_beta": "attention.b_proj",
    "ssm_a": "attention.A",
    "ssm_dt.bias": "attention.dt_bias",
    "ssm_norm": "attention.o_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.expert_bias",
    **{f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
    **{f"ffn_{each}_shexp": f"mlp.shared_experts.{each}_proj" for each in ("gate", "up", "down")},
    # Of a layer for multi-token prediction, which is not read.
    **{f"nextn.{each}": each for each in ("eh_proj", "enorm", "hnorm")},
    "layer_output_norm": "final_layernorm",
}
_NO_KEY_HEADS = {"gated_delta.by_key_head": "", "gated_delta.gates_by_key_head": ""}
_COMMON = TensorLayout(
    _QWEN_MOE,
    experts=EXPERTS,
    norms_plus_1=True,
    exact_norms=("ssm_norm.weight",),
    reshaped=_SHAPES,
    further="mtp.layers.{}.",
)
_QWEN35_MOE = replace(_COMMON, row_orders=_TILED, column_orders={"ssm_out.weight": "values"})
GATED_DELTA_LAYOUTS = {
    "qwen35": replace(_QWEN35_MOE, in_layers=_QWEN, experts={}),
    "qwen35moe": _QWEN35_MOE,
    "kimi-linear": TensorLayout(LLAMA | LATENT | _KIMI, experts=MIXTRAL_EXPERTS, reshaped=_KIMI_SHAPES),
    "bailingmoe3": TensorLayout(
        _BAILING,
        whole=WHOLE | {"token_embd": "model.word_embeddings"},
        experts=EXPERTS,
        reshaped=_KIMI_SHAPES,
        negated=("ssm_a",),
        own_names={"latent.up": f"model.layers.{{}}.{KV_B}", "gated_delta.output": "model.layers.{}.attention.dense"},
    ),
    "qwen3next": replace(_COMMON, divided={"ssm_ba.weight": _BOTH}, own_names=_NO_KEY_HEADS),
}
# Older files of Qwen3-Next have the first projection by key head, as checkpoints have it.
_BY_KEY_HEAD = {"ssm_in": "linear_attn.in_proj_qkvz", "ssm_ba": "linear_attn.in_proj_ba"}
BY_KEY_HEAD = replace(_COMMON, in_layers=_QWEN_MOE | _BY_KEY_HEAD)
