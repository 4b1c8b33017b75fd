"""OLMo 2: as Llama, with post-norms only, and query and key norms over all heads together."""

from typing import Any

from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention

LAYER = "model.layers.{}."
NAMES = WeightNames(
    attention_norm="",
    attention_out_norm=f"{LAYER}post_attention_layernorm.weight",
    mlp_norm="",
    mlp_out_norm=f"{LAYER}post_feedforward_layernorm.weight",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"rms_norm_eps": 1e-5} | fields


OLMO2 = Family("olmo2", ("Olmo2ForCausalLM",), NAMES, biases_of_attention, qk_norm=QKNorm("all_heads"), config=config)
