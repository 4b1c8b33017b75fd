"""GPT-BigCode (StarCoder, SantaCoder): as GPT-2, with one KV head and matrices in the order [out, in]."""

from dataclasses import replace
from typing import Any

from . import gpt2
from .family import Family, biases_of_layers, need


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("GPT-BigCode", fields, multi_query=True)
    found = gpt2.config({"activation_function": "gelu_pytorch_tanh"} | fields)
    return found | {"num_key_value_heads": 1}


GPT_BIGCODE = Family(
    name="gpt_bigcode",
    architectures=("GPTBigCodeForCausalLM",),
    weight_names=replace(gpt2.NAMES, are_transposed=False),
    biases=biases_of_layers,
    norm="layer",
    is_gated=False,
    config=config,
)
