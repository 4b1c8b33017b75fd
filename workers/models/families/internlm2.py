"""InternLM 2 and 2.5: Llama with other tensor names and one matrix of q, k and v, grouped by KV head."""

from typing import Any

from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from .family import Family, renamed
from .llama import biases

LAYER = "model.layers.{}."
QKV = f"{LAYER}attention.wqkv"
NAMES = WeightNames(
    embedding="model.tok_embeddings.weight",
    output_head="output.weight",
    attention_norm=f"{LAYER}attention_norm.weight",
    mlp_norm=f"{LAYER}ffn_norm.weight",
    query=QKV,
    key=QKV,
    value=QKV,
    output=f"{LAYER}attention.wo",
    gate=f"{LAYER}feed_forward.w1",
    up=f"{LAYER}feed_forward.w3",
    down=f"{LAYER}feed_forward.w2",
    are_grouped=True,
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {"bias": "attention_bias"})


INTERNLM2 = Family(
    "internlm2", ("InternLM2ForCausalLM",), NAMES, biases, config=config, reward_layers=(LabelLayer("v_head"),)
)
