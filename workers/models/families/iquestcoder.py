"""IQuest-Coder: Llama."""

from dataclasses import replace
from typing import Any

from .family import need
from .llama import LLAMA


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("IQuest-Coder", fields, clip_qkv=None, use_sliding_window=False)
    return fields


IQUEST_CODER = replace(LLAMA, name="iquestcoder", architectures=("IQuestCoderForCausalLM",), config=config)
