"""ChatGLM 2 and 3, and GLM-4-9B as published: the layers of GLM under other names."""

from typing import Any

from ..names.weight_names import WeightNames
from .family import Family, biases_of_qkv, need, partial_rope_everywhere, renamed

ENCODER = "transformer.encoder."
LAYER = f"{ENCODER}layers.{{}}."
QKV, GATE_UP = f"{LAYER}self_attention.query_key_value", f"{LAYER}mlp.dense_h_to_4h"
NAMES = WeightNames(
    embedding="transformer.embedding.word_embeddings.weight",
    final_norm=f"{ENCODER}final_layernorm.weight",
    output_head="transformer.output_layer.weight",
    attention_norm=f"{LAYER}input_layernorm.weight",
    mlp_norm=f"{LAYER}post_attention_layernorm.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}self_attention.dense",
    gate=GATE_UP,
    up=GATE_UP,
    down=f"{LAYER}mlp.dense_4h_to_h",
    unused=("rotary_pos_emb.inv_freq",),
)
FIELDS = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "layernorm_epsilon": "rms_norm_eps",
    "add_qkv_bias": "attention_bias",
    "seq_length": "max_position_embeddings",
    "padded_vocab_size": "vocab_size",
}
NEEDED = {
    "rmsnorm": True,
    "add_bias_linear": False,
    "post_layer_norm": True,
    "apply_residual_connection_post_layernorm": False,
    "fp32_residual_connection": False,
    "original_rope": True,
    "pre_seq_len": None,
    "vision_config": None,
    "position_encoding_2d": False,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ChatGLM", fields, **NEEDED)
    if fields.get("padded_vocab_size") is not None:
        fields = {name: value for name, value in fields.items() if name != "vocab_size"}
    found = renamed(fields, FIELDS, rms_norm_eps=1e-5, head_dim=128, max_position_embeddings=2048)
    if isinstance(ratio := found.get("rope_ratio", 1), int | float):
        found["rope_theta"] = 10_000.0 * ratio
    groups = fields.get("multi_query_group_num", 1) if fields.get("multi_query_attention") else None
    return found | {"num_key_value_heads": groups, "partial_rotary_factor": 0.5, "hidden_act": "silu"}


CHATGLM = Family(
    name="chatglm",
    architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    weight_names=NAMES,
    biases=biases_of_qkv,
    ropes=partial_rope_everywhere,
    interleaved=True,
    config=config,
)
