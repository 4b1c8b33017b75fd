"""Arcee: as Llama, with a feed-forward without a gate."""

from typing import Any

from .family import Family, renamed
from .llama import biases


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {}, hidden_act="relu2", rms_norm_eps=1e-5)


ARCEE = Family("arcee", ("ArceeForCausalLM",), biases=biases, is_gated=False, config=config)
