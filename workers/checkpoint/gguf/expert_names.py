"""The tensors of GGUF architectures with experts."""

from .split_latent import LATENT
from .tensor_layout import WHOLE, TensorLayout, as_row
from .usual_names import ATTENTION, EXPERTS, HEAD_NORMS, LLAMA, MIXTRAL_EXPERTS, NORM_AFTER_ATTENTION, SHARED_EXPERT

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
_DEEPSEEK2 = LLAMA | _SHARED_EXPERTS | _FURTHER | LATENT
_INDEXER = {
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
_GLM4_MOE = NORM_AFTER_ATTENTION | HEAD_NORMS | _SHARED_EXPERTS | _FURTHER
_ROUTER = {"ffn_gate_inp": "block_sparse_moe.gate"}
_FEED_FORWARD = {f"ffn_{each}": f"feed_forward.{each}_proj" for each in ("gate", "up", "down")}
_LLAMA4 = (
    LLAMA
    | _FEED_FORWARD
    | {
        "ffn_gate_inp": "feed_forward.router",
        **{f"ffn_{each}_shexp": f"feed_forward.shared_expert.{each}_proj" for each in ("gate", "up", "down")},
    }
)
_COHERE2_MOE = {name: module for name, module in LLAMA.items() if name != "ffn_norm"} | _SHARED_EXPERTS
_LLAMA4_EXPERTS = {f"ffn_{each}_exps": f"feed_forward.experts.{{}}.{each}_proj" for each in ("gate", "up", "down")}
_HUNYUAN = LLAMA | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_HUNYUAN_MOE = _HUNYUAN | {
    "ffn_gate_inp": "mlp.gate.wg",
    **{f"ffn_{each}_shexp": f"mlp.shared_mlp.{each}_proj" for each in ("gate", "up", "down")},
}
_AFMOE = (
    LLAMA
    | HEAD_NORMS
    | _SHARED_EXPERTS
    | {
        "attn_gate": "self_attn.gate_proj",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_mlp_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_gate_inp": "mlp.router.gate",
        "exp_probs_b.bias": "mlp.expert_bias",
    }
)
_EXAONE_MOE = (
    LLAMA
    | HEAD_NORMS
    | _SHARED_EXPERTS
    | {
        "exp_probs_b.bias": "mlp.e_score_correction_bias",
        "nextn.eh_proj": "mtp.fc",
        "nextn.enorm": "mtp.pre_fc_norm_embedding",
        "nextn.hnorm": "mtp.pre_fc_norm_hidden",
        "nextn.shared_head_norm": "mtp.norm",
    }
)
_HY_V3 = (
    LLAMA
    | HEAD_NORMS
    | _FURTHER
    | {
        "ffn_gate_inp": "mlp.router.gate",
        "exp_probs_b": "mlp.expert_bias",
        **{f"ffn_{each}_shexp": f"mlp.shared_mlp.{each}_proj" for each in ("gate", "up", "down")},
    }
)
_LAGUNA = (
    LLAMA
    | HEAD_NORMS
    | SHARED_EXPERT
    | {
        "attn_gate": "self_attn.g_proj",
        "ffn_gate_inp": "mlp.gate",
        "exp_probs_b.bias": "mlp.experts.e_score_correction_bias",
    }
)
_MIMO2 = LLAMA | _SHARED_EXPERTS | _FURTHER | {"attn_sinks.weight": "self_attn.attention_sink_bias"}
_GRANITE_SWA = LLAMA | {
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "block_sparse_moe.router",
    "ffn_up_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
_LING2 = (
    LLAMA
    | _SHARED_EXPERTS
    | _FURTHER
    | {
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "attn_q_norm": "attention.query_layernorm",
        "attn_k_norm": "attention.key_layernorm",
        "exp_probs_b.bias": "mlp.gate.expert_bias",
        "layer_output_norm": "final_layernorm",
    }
)
_LING = _LING2 | {f"attn_{each}": f"attention.{each}_proj" for each in "qkv"}
PARTS = ("gate", "up", "down")
_DBRX = {
    "attn_norm": "norm_attn_norm.norm_1",
    "attn_qkv": "norm_attn_norm.attn.Wqkv",
    "attn_output": "norm_attn_norm.attn.out_proj",
    "attn_output_norm": "norm_attn_norm.norm_2",
    "ffn_gate_inp": "ffn.router.layer",
}
_DBRX_EXPERTS = {
    f"ffn_{each}_exps": f"ffn.experts.{{}}.{name}"
    for each, name in zip(("gate", "up", "down"), ("w1", "v1", "w2"), strict=True)
}
EXPERT_LAYOUTS = {
    "dbrx": TensorLayout(
        _DBRX,
        whole={"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
        layer="transformer.blocks.{}.",
        experts=_DBRX_EXPERTS,
    ),
    "bailingmoe": TensorLayout(
        _LING,
        whole=WHOLE | {"token_embd": "model.word_embeddings"},
        experts=EXPERTS,
        are_rows_interleaved=True,
        own_names={name: f"model.layers.{{}}.attention.{name[0]}_proj" for name in ("query", "key", "value")},
    ),
    "bailingmoe2": TensorLayout(_LING2, whole=WHOLE | {"token_embd": "model.word_embeddings"}, experts=EXPERTS),
    "deepseek": TensorLayout(LLAMA | _SHARED_EXPERTS, experts=EXPERTS, are_rows_interleaved=True),
    "deepseek2": TensorLayout(_DEEPSEEK2, experts=EXPERTS),
    "deepseek32": TensorLayout(_DEEPSEEK2 | _INDEXER, experts=EXPERTS),
    "glm-dsa": TensorLayout(_DEEPSEEK2 | _INDEXER, experts=EXPERTS),
    "mistral4": TensorLayout(LLAMA | _SHARED_EXPERTS | LATENT, experts=EXPERTS),
    "minicpm3": TensorLayout(LLAMA | LATENT),
    "glm4moe": TensorLayout(_GLM4_MOE, experts=EXPERTS),
    "qwen2moe": TensorLayout(
        _OF_EXPERTS | SHARED_EXPERT, experts=EXPERTS, reshaped={"ffn_gate_inp_shexp.weight": as_row}
    ),
    "qwen3moe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "qwen3vlmoe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "olmoe": TensorLayout(_OF_EXPERTS | HEAD_NORMS, experts=EXPERTS),
    "gpt-oss": TensorLayout(_GPT_OSS, experts=EXPERTS),
    "granitemoe": TensorLayout(
        LLAMA | {"ffn_gate_inp": "block_sparse_moe.router.layer"} | SHARED_EXPERT,
        experts=EXPERTS,
        are_rows_interleaved=True,
        own_names={
            f"experts.shared_{each}": f"model.layers.{{}}.{SHARED_EXPERT[f'ffn_{each}_shexp']}" for each in PARTS
        },
    ),
    "granite_swa": TensorLayout(_GRANITE_SWA, experts=EXPERTS, are_rows_interleaved=True),
    "minimax-m2": TensorLayout(
        LLAMA | HEAD_NORMS | _ROUTER | {"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
        experts=MIXTRAL_EXPERTS,
    ),
    "ernie4_5": TensorLayout(LLAMA),
    "ernie4_5-moe": TensorLayout(
        LLAMA | _SHARED_EXPERTS | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        experts=EXPERTS,
    ),
    "hunyuan-dense": TensorLayout(_HUNYUAN),
    "hunyuan-moe": TensorLayout(_HUNYUAN_MOE, experts=EXPERTS),
    "llama4": TensorLayout(_LLAMA4, experts=_LLAMA4_EXPERTS),
    "cohere2moe": TensorLayout(_COHERE2_MOE, experts=EXPERTS),
    "dots1": TensorLayout(LLAMA | HEAD_NORMS | _SHARED_EXPERTS, experts=EXPERTS),
    "afmoe": TensorLayout(_AFMOE, experts=EXPERTS),
    "exaone-moe": TensorLayout(_EXAONE_MOE, experts=EXPERTS, further="mtp.layers.{}."),
    "hy_v3": TensorLayout(_HY_V3, experts=EXPERTS),
    "laguna": TensorLayout(_LAGUNA, experts=EXPERTS),
    "mellum": TensorLayout(_OF_EXPERTS | LLAMA | HEAD_NORMS, experts=EXPERTS),
    "mimo2": TensorLayout(_MIMO2, experts=EXPERTS, further="model.mtp.layers.{}."),
    "phimoe": TensorLayout(LLAMA | _ROUTER, experts=MIXTRAL_EXPERTS),
}
