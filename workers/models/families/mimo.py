"""MiMo 7B: Qwen2, whose layer for multi-token prediction is not read."""

from dataclasses import replace

from ..names.weight_names import WeightNames
from .qwen2 import QWEN2

MIMO = replace(
    QWEN2,
    name="mimo",
    architectures=("MiMoForCausalLM",),
    weight_names=WeightNames(unused_prefixes=("model.mtp_layers.",)),
    reward_layers=(),
)
