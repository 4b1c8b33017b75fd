"""The tensors of GGUF architectures with gated delta nets."""

from dataclasses import replace

from .row_orders import Kind
from .tensor_layout import TensorLayout, as_filters, as_row
from .usual_names import EXPERTS, HEAD_NORMS, NORM_AFTER_ATTENTION, SHARED_EXPERT

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
    "qwen3next": replace(_COMMON, divided={"ssm_ba.weight": _BOTH}, own_names=_NO_KEY_HEADS),
}
# Older files of Qwen3-Next have the first projection by key head, as checkpoints have it.
_BY_KEY_HEAD = {"ssm_in": "linear_attn.in_proj_qkvz", "ssm_ba": "linear_attn.in_proj_ba"}
BY_KEY_HEAD = replace(_COMMON, in_layers=_QWEN_MOE | _BY_KEY_HEAD)
