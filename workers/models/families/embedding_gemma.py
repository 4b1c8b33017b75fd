"""EmbeddingGemma: Gemma 3's text model with bidirectional attention; most layers attend within a window on both sides.

The same architecture with causal attention is Gemma 3 without an output head.
"""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from . import gemma3
from .family import Family, full_attention, windows_by_pattern


def config(fields: dict[str, Any]) -> dict[str, Any]:
    is_bidirectional, window = bool(fields.get("use_bidirectional_attention")), fields.get("sliding_window", 4096)
    if is_bidirectional and (window is None or (isinstance(window, int) and window < 2)):
        raise ConfigError(f"config.json: sliding_window={window} must be at least 2, half on each side of a token")
    found = gemma3.config({**fields, "use_bidirectional_attention": None})
    return found | {"use_bidirectional_attention": is_bidirectional}


def reaches(config: HFConfig) -> tuple[int, ...]:
    """The positions on each side of a token that a layer attends to: half of `sliding_window`; 0: all."""
    return tuple(window // 2 for window in windows_by_pattern(config))


def adapted(family: Family, config: HFConfig) -> Family:
    return family if config.use_bidirectional_attention else replace(gemma3.GEMMA3, architectures=family.architectures)


EMBEDDING_GEMMA = replace(
    gemma3.GEMMA3,
    name="embedding_gemma",
    architectures=("Gemma3TextModel",),
    sliding_windows=full_attention,
    reaches=reaches,
    config=config,
    is_bidirectional=True,
    pooled="last",
    adapted=adapted,
)
