"""Llama 2 and 3.x, and the many models that use their architecture."""

from ...checkpoint.hf_config import HFConfig
from .family import Biases, Family


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, mlp=config.mlp_bias)


LLAMA = Family(name="llama", architectures=("LlamaForCausalLM",), biases=biases)
