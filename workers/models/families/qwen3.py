"""Qwen3, dense: as Llama, with query and key norms per head; upper layers may have a sliding window."""

from ...geometry.model_options import QKNorm
from .family import Family, biases_of_attention, windows_by_layer_type

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    biases=biases_of_attention,
    sliding_windows=windows_by_layer_type,
    qk_norm=QKNorm(),
    default_head_dim=128,
)
