"""How much longer the steps of a tokenizer.json may make a text: a file could make terabytes of one line."""

import math
import re
from collections.abc import Iterator
from typing import Any

from paged_serve.protocol.errors import ConfigError

_ZERO_WIDTH = ("(?", "\\b", "\\B", "\\G", "\\K")
MAX_GROWTH = 16.0  # of real files none reaches 4: a tab to spaces


def check_growth(steps: dict[str, Any], subject: str) -> float:
    """How many times as long. `steps`: a normalizer or decoder as tokenizer.json has it, or a Sequence, at any depth.

    Raises ConfigError when what they replace can make a text more than MAX_GROWTH times as long.
    """
    growth = math.prod(map(_growth, _single(steps)))
    if growth > MAX_GROWTH:
        raise ConfigError(
            f"{subject} can make a text {growth:.3g} times as long; at most {MAX_GROWTH:g} times is served"
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
        return max(1.0, len(step["prepend"]))  # to each text between special tokens
    if step.get("type") != "Replace":
        return 1.0
    content, pattern = len(step["content"]), step["pattern"]
    if "String" in pattern:
        return max(1.0, content / max(1, len(pattern["String"])))
    return max(1.0, content) if _takes_a_character(pattern["Regex"]) else 1.0 + content


def _takes_a_character(pattern: str) -> bool:
    """Whether no match is empty; False where that is not plain."""
    try:
        return not any(sign in pattern for sign in _ZERO_WIDTH) and re.match(pattern, "") is None
    except (re.error, RecursionError, OverflowError):  # another dialect
        return False
