"""GPT-BigCode (StarCoder, SantaCoder): as GPT-2, with one head of keys and values, and matrices as [out, in]."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from . import gpt2
from .family import Family


def config(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("multi_query", True) is not True:
        raise ConfigError("config.json: multi_query=False is not supported for GPT-BigCode; only True is")
    found = gpt2.config({"activation_function": "gelu_pytorch_tanh"} | fields)
    return found | {"num_key_value_heads": 1}


GPT_BIGCODE = Family(
    name="gpt_bigcode",
    architectures=("GPTBigCodeForCausalLM",),
    weight_names=replace(gpt2.NAMES, are_transposed=False),
    biases=gpt2.biases,
    norm="layer",
    is_gated=False,
    config=config,
)
