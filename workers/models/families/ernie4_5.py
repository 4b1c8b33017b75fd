"""ERNIE 4.5, dense: as Llama, with interleaved rotation; one field for all biases."""

from typing import Any

from .family import Family, renamed
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"use_bias": "attention_bias"}, **DEFAULTS)
    return found | {"mlp_bias": found["attention_bias"]}


DEFAULTS = {
    "attention_bias": False,
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
ERNIE4_5 = Family(
    "ernie4_5",
    ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    biases=biases,
    interleaved=True,
    config=config,
)
