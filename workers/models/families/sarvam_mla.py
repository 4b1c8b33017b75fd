"""Sarvam 105B: as DeepSeek-V3, under other names of fields."""

from dataclasses import replace
from typing import Any

from .deepseek import DEEPSEEK_V3, config_v3
from .family import renamed
from .kimi_linear import COUNTS

DEFAULTS = {"num_experts": 128, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": None}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = DEFAULTS | renamed(fields, {**COUNTS, "score_function": "scoring_func"})
    scaling = found.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("type", scaling.get("rope_type")) == "deepseek_yarn":
        found["rope_scaling"] = scaling | {"type": "yarn", "rope_type": "yarn"}
    return config_v3(found | {"head_dim": None})


SARVAM_MLA = replace(DEEPSEEK_V3, name="sarvam_mla", architectures=("SarvamMLAForCausalLM",), config=config, mtp=None)
