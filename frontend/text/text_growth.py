"""Bounds how much the steps of a tokenizer.json lengthen a text: a hostile file could turn a line into terabytes."""

import math
import re
from collections.abc import Iterator
from typing import Any

from paged_serve.protocol.errors import ConfigError

_ZERO_WIDTH = ("(?", "\\b", "\\B", "\\G", "\\K")
MAX_GROWTH = 16.0  # real files stay below 4, for a tab replaced by spaces


def check_growth(steps: dict[str, Any], subject: str) -> float:
    """The factor by which `steps` may lengthen a text: a normalizer or decoder of tokenizer.json, Sequence included.

    Raises ConfigError when the factor exceeds MAX_GROWTH.
    """
    growth = math.prod(map(_growth, _single(steps)))
    if growth > MAX_GROWTH:
        raise ConfigError(
            f"{subject} can make a text {growth:.3g} times as long; at most {MAX_GROWTH:g} times is allowed"
        )
    return growth


def _single(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = step.get("normalizers") or step.get("decoders") or ()
    if step.get("type") == "Sequence":
        for part in inner:
            yield from _single(part)
    else:
        yield step


def _growth(step: dict[str, Any]) -> float:
    if step.get("type") == "Prepend":
        return max(1.0, len(step["prepend"]))  # before each text between special tokens
    if step.get("type") != "Replace":
        return 1.0
    content, pattern = len(step["content"]), step["pattern"]
    if "String" in pattern:
        return max(1.0, content / max(1, len(pattern["String"])))
    return max(1.0, content) if _takes_a_character(pattern["Regex"]) else 1.0 + content


def _takes_a_character(pattern: str) -> bool:
    """Whether every match has at least one character; False when that is not certain."""
    try:
        return not any(sign in pattern for sign in _ZERO_WIDTH) and re.match(pattern, "") is None
    except (re.error, RecursionError, OverflowError):  # another dialect
        return False
