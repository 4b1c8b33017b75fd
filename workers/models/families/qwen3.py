"""Qwen3, dense: as Llama, with query and key norms per head; upper layers may have a sliding window."""

from .family import Family, biases_of_attention, windows_by_layer_type

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    biases=biases_of_attention,
    sliding_windows=windows_by_layer_type,
    qk_norm=True,
    default_head_dim=128,
)
