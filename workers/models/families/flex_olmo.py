"""FlexOlmo: as OLMo 2, with experts in all layers."""

from dataclasses import replace
from typing import Any

from .family import renamed
from .olmo2 import OLMO2
from .olmoe import experts


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {}, num_experts=7, num_experts_per_tok=5, rope_theta=500000.0)


FLEX_OLMO = replace(OLMO2, name="flex_olmo", architectures=("FlexOlmoForCausalLM",), config=config, experts=experts)
