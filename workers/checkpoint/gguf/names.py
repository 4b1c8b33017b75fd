"""The tensors of each GGUF architecture: their names in a Hugging Face checkpoint, and how they are stored."""

from collections.abc import Collection
from dataclasses import replace

from paged_serve.protocol.errors import ConfigError

from .encoder_names import ENCODER_LAYOUTS
from .expert_names import EXPERT_LAYOUTS
from .gated_delta_names import BY_KEY_HEAD, GATED_DELTA_LAYOUTS
from .gemma_names import GEMMA_LAYOUTS
from .recurrent_names import RECURRENT_LAYOUTS
from .tensor_layout import WHOLE, TensorLayout
from .usual_names import ATTENTION, HEAD_NORMS, LLAMA, MIXTRAL_EXPERTS, NORM_AFTER_ATTENTION

_PHI3 = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_PHI2 = ATTENTION | {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GLM4 = LLAMA | {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_APERTUS = LLAMA | {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}
_CHATGLM = LLAMA | {"ffn_up": "mlp.gate_up_proj", "attn_qkv": "self_attn.qkv_proj"}
_ONE_MATRIX = dict.fromkeys(("query", "key", "value"), "model.layers.{}.self_attn.qkv_proj")
_POST_NORMS = NORM_AFTER_ATTENTION | HEAD_NORMS | {"post_ffw_norm": "post_feedforward_layernorm"}
_EXAONE = {
    "attn_norm": "ln_1",
    "attn_q": "attn.attention.q_proj",
    "attn_k": "attn.attention.k_proj",
    "attn_v": "attn.attention.v_proj",
    "attn_output": "attn.attention.out_proj",
    "ffn_norm": "ln_2",
    "ffn_gate": "mlp.c_fc_0",
    "ffn_up": "mlp.c_fc_1",
    "ffn_down": "mlp.c_proj",
}
_INTERNLM2 = ATTENTION | {
    "attn_norm": "attention_norm",
    "attn_output": "attention.wo",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_STABLELM_NORMS = {"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"}
_FALCON = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_WHOLE = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_BLOOM = _FALCON | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GPT_NEOX = _BLOOM | {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense"}
_FALCON_WHOLE = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_MPT = {
    "attn_norm": "norm_1",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "ffn_norm": "norm_2",
    "ffn_up": "ffn.up_proj",
    "ffn_down": "ffn.down_proj",
}
_MPT_WHOLE = {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"}
_H = "transformer.h.{}."
_SEPARATE = {each: f"model.layers.{{}}.self_attn.{each[0]}_proj" for each in ("query", "key", "value")}
_UNGROUPED = {"are_grouped": False}  # one matrix has all queries, then all keys, then all values
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # are in config.json
TENSOR_LAYOUTS = (
    EXPERT_LAYOUTS
    | GEMMA_LAYOUTS
    | ENCODER_LAYOUTS
    | RECURRENT_LAYOUTS
    | GATED_DELTA_LAYOUTS
    | {
        "llama": TensorLayout(
            LLAMA | {"ffn_gate_inp": "block_sparse_moe.gate"}, experts=MIXTRAL_EXPERTS, are_rows_interleaved=True
        ),
        "deci": TensorLayout(LLAMA, are_rows_interleaved=True),
        "qwen2": TensorLayout(LLAMA),
        "qwen2vl": TensorLayout(LLAMA),
        "qwen3": TensorLayout(LLAMA | HEAD_NORMS),
        "qwen3vl": TensorLayout(LLAMA | HEAD_NORMS),
        "phi2": TensorLayout(_PHI2, whole=WHOLE | {"output_norm": "model.final_layernorm"}),
        "phi3": TensorLayout(_PHI3),
        "glm4": TensorLayout(_GLM4),
        "chatglm": TensorLayout(_CHATGLM),
        "granite": TensorLayout(LLAMA, are_rows_interleaved=True),
        "smollm3": TensorLayout(LLAMA, are_rows_interleaved=True),
        "olmo": TensorLayout(LLAMA, are_rows_interleaved=True),
        "olmo2": TensorLayout(_POST_NORMS),
        "exaone": TensorLayout(
            _EXAONE,
            whole={"token_embd": "transformer.wte", "output_norm": "transformer.ln_f", "output": "lm_head"},
            layer=_H,
        ),
        "exaone4": TensorLayout(_POST_NORMS),
        "command-r": TensorLayout(LLAMA | HEAD_NORMS),
        "cohere2": TensorLayout(LLAMA),
        "mistral3": TensorLayout(LLAMA, are_rows_interleaved=True),
        "seed_oss": TensorLayout(NORM_AFTER_ATTENTION),
        "minicpm": TensorLayout(LLAMA, are_rows_interleaved=True),
        "internlm2": TensorLayout(
            _INTERNLM2,
            whole=WHOLE | {"token_embd": "model.tok_embeddings", "output": "output"},
            are_rows_interleaved=True,
            own_names=_UNGROUPED | _SEPARATE,
        ),
        "starcoder2": TensorLayout(LLAMA | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
        "stablelm": TensorLayout(
            LLAMA | _STABLELM_NORMS,
            own_names={
                "query_norm": "model.layers.{}.self_attn.q_layernorm.weight",
                "key_norm": "model.layers.{}.self_attn.k_layernorm.weight",
            },
        ),
        "nemotron": TensorLayout(LLAMA, norms_plus_1=True),
        "apertus": TensorLayout(_APERTUS | HEAD_NORMS),
        "arcee": TensorLayout(LLAMA, are_rows_interleaved=True),
        "falcon": TensorLayout(
            _FALCON | {"attn_norm": "input_layernorm"}, whole=_FALCON_WHOLE, layer=_H, own_names=_UNGROUPED
        ),
        "gpt2": TensorLayout(_GPT2, whole=_GPT2_WHOLE, layer=_H, own_names={"are_transposed": False}),
        "starcoder": TensorLayout(_GPT2, whole=_GPT2_WHOLE, layer=_H),
        "gptneox": TensorLayout(
            _GPT_NEOX,
            whole={
                "token_embd": "gpt_neox.embed_in",
                "output_norm": "gpt_neox.final_layer_norm",
                "output": "embed_out",
            },
            layer="gpt_neox.layers.{}.",
            own_names=_UNGROUPED,
        ),
        "jais2": TensorLayout(LLAMA),
        "mpt": TensorLayout(_MPT, whole=_MPT_WHOLE, layer="transformer.blocks.{}."),
        "bloom": TensorLayout(_BLOOM, whole=_FALCON_WHOLE, layer=_H, own_names=_UNGROUPED),
    }
)

# Of files with a tensor that other files of the architecture lack: architecture -> (its name, layout).
_VARIANTS = {
    "chatglm": ("blk.0.attn_qkv.weight", replace(TENSOR_LAYOUTS["chatglm"], own_names=_ONE_MATRIX)),
    "qwen3next": ("blk.0.ssm_in.weight", BY_KEY_HEAD),
    "falcon": (
        "blk.0.attn_norm_2.weight",
        replace(TENSOR_LAYOUTS["falcon"], in_layers=_FALCON | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}),
    ),
}


def tensor_layout(architecture: str, tensors: Collection[str], source: str) -> TensorLayout:
    """Raises ConfigError for an unknown architecture."""
    if architecture in _VARIANTS and _VARIANTS[architecture][0] in tensors:
        return _VARIANTS[architecture][1]
    if (layout := TENSOR_LAYOUTS.get(architecture)) is None:
        raise ConfigError(
            f"{source}: the GGUF architecture {architecture!r} is not supported; supported: {', '.join(TENSOR_LAYOUTS)}"
        )
    return layout
