"""Helium: as Llama, with interleaved rotation."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from .family import Family


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"rms_norm_eps": 1e-8} | fields


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, mlp=config.mlp_bias)


HELIUM = Family("helium", ("HeliumForCausalLM",), biases=biases, default_head_dim=128, interleaved=True, config=config)
