"""VaultGemma: Gemma 2 without the norms after attention and feed-forward."""

from dataclasses import replace
from typing import Any

from ..names.weight_names import WeightNames
from . import gemma2
from .family import need


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("VaultGemma", fields, use_bidirectional_attention=False)
    return gemma2.config({"num_key_value_heads": 4} | fields)


VAULT_GEMMA = replace(
    gemma2.GEMMA2,
    name="vaultgemma",
    architectures=("VaultGemmaForCausalLM",),
    weight_names=WeightNames(mlp_norm="model.layers.{}.pre_feedforward_layernorm.weight"),
    config=config,
)
