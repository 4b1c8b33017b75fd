"""InternLM 3: as Llama, with one field for the biases of q, k and v, and another for those of other projections."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from .family import Family, renamed


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {"qkv_bias": "attention_bias", "bias": "mlp_bias"})


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.mlp_bias, mlp=config.mlp_bias)


INTERNLM3 = Family("internlm3", ("InternLM3ForCausalLM",), biases=biases, config=config)
