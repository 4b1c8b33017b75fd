"""Qwen2 and Qwen2.5: as Llama, with biases on q, k and v; upper layers may have a sliding window."""

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ...pooling.head import LabelLayer
from .family import Family, windows_by_layer_type


def biases(_: HFConfig) -> Biases:
    return Biases(qkv=True)


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    biases=biases,
    sliding_windows=windows_by_layer_type,
    reward_layers=(LabelLayer("score.0", "relu"), LabelLayer("score.2")),
)
