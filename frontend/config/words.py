"""Suggestions for a name or value that is not valid: the nearest name, the valid values."""

import difflib
import re
from collections.abc import Iterable

_CUTOFF = 0.7  # tolerates a letter or two, or a missing part; refuses another word with some of the letters
_RULES = (  # msgspec's message -> what follows "name=value: "
    (r"Expected `int[^`]*`, got `\w+`", "is not a whole number"),
    (r"Expected `float[^`]*`, got `\w+`", "is not a number"),
    (r"Expected `bool[^`]*`, got `\w+`", "is neither true nor false"),
    (r"Expected `str[^`]*`, got `\w+`", "is not a string"),
    (r"Expected `array[^`]*`, got `\w+`", "is not a list"),
    (r"Expected `(?:int|float)[^`]*` >= (\S+)", r"must be at least \1"),
    (r"Expected `(?:int|float)[^`]*` <= (\S+)", r"must be at most \1"),
    (r"Expected `(?:int|float)[^`]*` > (\S+)", r"must be above \1"),
    (r"Expected `(?:int|float)[^`]*` < (\S+)", r"must be below \1"),
    (r"Expected `str[^`]*` of length >= 1", "must not be empty"),
    (r"Expected `(?:str|array)[^`]*` of length <= (\d+)", r"must not be longer than \1"),
    (r"Expected `str[^`]*` matching regex '(.*)'", r"must match the pattern \1"),
)


def closest(name: str, known: Iterable[str]) -> str:
    """The known name nearest to `name`; "" when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_CUTOFF)), "")


def hint(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest known one, if any."""
    meant = closest(name, known)
    return f"; did you mean {meant}?" if meant else ""


def plain(reason: str) -> str:
    """msgspec's message in plain words, without Python types."""
    reason = re.sub(r" - at `.*`$", "", reason, flags=re.DOTALL)
    for pattern, words in _RULES:
        if match := re.fullmatch(pattern, reason, re.DOTALL):
            return match.expand(words)
    return reason
