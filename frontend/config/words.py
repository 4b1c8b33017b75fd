"""Suggestions for a name or value that is not valid: the nearest name, the valid values. Sizes with their units."""

import difflib
import re
from collections.abc import Iterable

_CUTOFF = 0.7  # tolerates a letter or two, or a missing part; refuses another word with some of the letters
SIZE_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TOO_MANY = "must have at most"
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
    (r"Expected `str[^`]*` of length <= (\d+)", r"must not be longer than \1"),
    (r"Expected `array[^`]*` of length <= (\d+)", rf"{TOO_MANY} \1 values"),
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


def size_text(num_bytes: int) -> str:
    """A number of bytes as an option takes it, in the largest unit that divides it: 16G."""
    units = (unit for unit in "TGMK" if num_bytes and num_bytes % SIZE_UNITS[unit] == 0)
    unit = next(units, "")
    return f"{num_bytes // SIZE_UNITS[unit]}{unit}" if unit else str(num_bytes)
