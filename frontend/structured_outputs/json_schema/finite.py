"""Writes finite sets with keywords that a grammar supports; returns None for sets that are too large."""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from .schema_walk import Schema

MAX_BRANCHES = 500
_ANYTHING = r"[\s\S]*"


def other_texts(texts: Iterable[str]) -> str:
    """A regular expression for every text except these."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"^{_outside(tree)}$"


def _outside(node: dict[str, Any]) -> str:
    """A regular expression for texts that do not lead from `node` to the end of an excluded text."""
    following = [char for char in node if char]
    branches = [_char(char) + _outside(node[char]) for char in following]
    excluded = "".join(map(_char, following))
    branches.append(f"[^{excluded}]{_ANYTHING}" if excluded else rf"[\s\S]{_ANYTHING}")
    whole = f"(?:{'|'.join(branches)})"
    return whole if "" in node else whole + "?"


def _char(char: str) -> str:
    return rf"\x{{{ord(char):x}}}"


def arrays_without_repetition(values: Sequence[Any], least: int, most: int | None) -> list[Schema] | None:
    """Schemas of all arrays of `least` to `most` distinct values."""
    lengths = range(least, min(len(values), len(values) if most is None else most) + 1)
    if sum(perm(len(values), length) for length in lengths) > MAX_BRANCHES:
        return None
    return [
        {
            "type": "array",
            "prefixItems": [{"const": value} for value in chosen],
            "minItems": length,
            "maxItems": length,
        }
        for length in lengths
        for chosen in permutations(values, length)
    ]


def objects_of_size(names: Sequence[str], required: Sequence[str], least: int, most: int | None) -> list[Schema] | None:
    """Schemas of all objects with `least` to `most` of the properties `names`."""
    optional = [name for name in names if name not in required]
    longest = len(optional) if most is None else min(len(optional), most - len(required))
    sizes = range(max(0, least - len(required)), longest + 1)
    if sum(comb(len(optional), size) for size in sizes) > MAX_BRANCHES:
        return None
    return [
        {
            "properties": {name: False for name in optional if name not in chosen},
            "required": [*required, *chosen],
        }
        for size in sizes
        for chosen in combinations(optional, size)
    ]
