"""The tensors of GGUF architectures with experts."""

from .split_latent import KEYS_OF_LATENT, VALUES_OF_LATENT
from .tensor_layout import TensorLayout, as_row
from .usual_names import ATTENTION, EXPERTS, HEAD_NORMS, LLAMA, NORM_AFTER_ATTENTION, SHARED_EXPERT

_OF_EXPERTS = ATTENTION | {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
_GPT_OSS = ATTENTION | {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
# Layers beyond the last predict several tokens at once.
_FURTHER = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_SHARED_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_DEEPSEEK2 = (
    LLAMA
    | _SHARED_EXPERTS
    | _FURTHER
    | {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": KEYS_OF_LATENT,
        "attn_v_b": VALUES_OF_LATENT,
    }
)
_GLM4_MOE = NORM_AFTER_ATTENTION | HEAD_NORMS | _SHARED_EXPERTS | _FURTHER
EXPERT_LAYOUTS = {
    "deepseek2": TensorLayout(_DEEPSEEK2, experts=EXPERTS),
    "glm4moe": TensorLayout(_GLM4_MOE, experts=EXPERTS),
    "qwen2moe": TensorLayout(
        _OF_EXPERTS | SHARED_EXPERT, experts=EXPERTS, reshaped={"ffn_gate_inp_shexp.weight": as_row}
    ),
    "qwen3moe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "qwen3vlmoe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "olmoe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "gpt-oss": TensorLayout(_GPT_OSS, experts=EXPERTS),
    "granitemoe": TensorLayout(
        LLAMA | {"ffn_gate_inp": "block_sparse_moe.router.layer"}, experts=EXPERTS, are_rows_interleaved=True
    ),
}
