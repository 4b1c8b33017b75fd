"""Phi-4-multimodal's text: as Phi-4-mini; what adapts its matrices to images and speech is not loaded."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from . import phi3
from .family import Family, need, renamed

# Published files have adapters for images and speech beside the matrices of layers, which have names of their own.
ADAPTERS = tuple(f".lora_{side}.{kind}.weight" for side in "AB" for kind in ("vision", "speech"))
BESIDE = ("model.embed_tokens_extend.",)  # the other parts
DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Phi-4-multimodal", fields, attention_bias=False, mlp_bias=False, lm_head_bias=False)
    return phi3.config(renamed(fields, {}, **DEFAULTS))


def adapted_names(names: WeightNames) -> WeightNames:
    matrices = ("query", "key", "value", "output", "gate", "up", "down")
    wrapped: dict[str, Any] = {each: f"{getattr(names, each)}.base_layer" for each in matrices}
    return replace(names, unused=(*names.unused, *ADAPTERS), **wrapped)


NAMES = replace(phi3.NAMES, unused_prefixes=BESIDE)
PHI4_MULTIMODAL: Family = replace(
    phi3.PHI3,
    name="phi4_multimodal",
    architectures=("Phi4MultimodalForCausalLM", "Phi4MMForCausalLM"),
    weight_names=replace(NAMES, others=(adapted_names(NAMES),)),
    config=config,
)
