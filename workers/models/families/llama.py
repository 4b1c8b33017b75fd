"""Llama 2 and 3.x, and the many models that use their architecture."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from .family import Family, renamed


def with_positions(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the default of transformers where the first conversions of LLaMA have no number of positions."""
    return renamed(fields, {}, max_position_embeddings=2048)


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, mlp=config.mlp_bias)


LLAMA = Family(
    name="llama",
    architectures=(
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "TeleChat3ForCausalLM",
        "AquilaForCausalLM",
        "XverseForCausalLM",
    ),
    biases=biases,
    config=with_positions,
)
