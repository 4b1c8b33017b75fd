"""Qwen3, dense: as Llama, with query and key norms per head; upper layers may have a sliding window."""

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
