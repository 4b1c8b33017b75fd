"""Qwen3, dense: queries and keys are normalised per head; upper layers may slide."""

from ...checkpoint.hf_config import HFConfig
from .family import Biases, Family, windows_by_layer_type


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias)


QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    biases=biases,
    sliding_windows=windows_by_layer_type,
    qk_norm=True,
    default_head_dim=128,
)
