"""Apertus: as Llama 3.1, with QK norm, and an ungated feed-forward with xIELU, whose parameters each layer learns."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ...geometry.model_options import QKNorm
from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention, need

LAYER = "model.layers.{}."
NAMES = WeightNames(
    attention_norm=f"{LAYER}attention_layernorm.weight",
    mlp_norm=f"{LAYER}feedforward_layernorm.weight",
    activation=f"{LAYER}mlp.act_fn",
    unused=("rotary_emb.inv_freq", "mlp.act_fn.beta", "mlp.act_fn.eps"),
)
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Apertus", fields, mlp_bias=False, post_norm=False, qk_norm=True)
    found = {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_theta": 12e6} | fields
    if all(found.get(name) is None for name in ("rope_scaling", "rope_parameters")):
        found["rope_parameters"] = ROPE
    return found


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    if config.xielu_alpha_p is None or config.xielu_alpha_n is None:
        return geometry
    for name in ("xielu_alpha_p", "xielu_alpha_n"):
        if len(given := getattr(config, name)) != geometry.num_layers:
            raise ConfigError(f"config.json: {name} has {len(given)} numbers for {geometry.num_layers} layers")
    return replace(geometry, xielu=tuple(zip(config.xielu_alpha_p, config.xielu_alpha_n, strict=True)))


APERTUS = Family(
    name="apertus",
    architectures=("ApertusForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_attention,
    qk_norm=QKNorm(),
    is_gated=False,
    config=config,
    refined=refined,
)
