"""Seed-OSS: as Llama, with biases on queries, keys and values."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from .family import Family


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": True} | fields


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_out_bias, mlp=config.mlp_bias)


SEED_OSS = Family("seed_oss", ("SeedOssForCausalLM",), biases=biases, default_head_dim=128, config=config)
