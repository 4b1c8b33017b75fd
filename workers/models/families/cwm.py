"""Code World Model: as Llama 3.1, with a sliding window in three layers of four."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from .family import Family, full_in_every_fourth, need, windows_by_pattern

ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 8192}
END_TOKENS = [128001, 128008, 128009]


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Code World Model", fields, attention_bias=False)
    found = DEFAULTS | fields
    if found.get("eos_token_id") is None:
        found["eos_token_id"] = END_TOKENS
    if all(found.get(name) is None for name in ("rope_scaling", "rope_parameters")):
        found["rope_parameters"] = ROPE
    return full_in_every_fourth(found)


def biases(config: HFConfig) -> Biases:
    return Biases(mlp=config.mlp_bias)


CWM = Family(
    name="cwm",
    architectures=("CwmForCausalLM",),
    biases=biases,
    sliding_windows=windows_by_pattern,
    config=config,
)
