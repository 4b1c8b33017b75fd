"""Negates a schema, if the negation can be written without `not`."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from .finite import other_texts
from .schema_walk import Schema, resolved

TYPES = ("null", "boolean", "number", "string", "array", "object")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$id", "$schema")
)
MAX_DEPTH = 16
# keyword -> (the type that it constrains, the opposite keyword, the offset of the number)
_OPPOSITES = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}


def negated(root: Schema, schema: Schema, depth: int = 0) -> Schema | None:
    """The schema of all values that `schema` refuses; None if it cannot be expressed."""
    schema = resolved(root, schema)
    if isinstance(schema, bool):
        return not schema
    if depth > MAX_DEPTH:
        return None
    branches: list[Schema] = []
    for name, value in schema.items():
        if name in ANNOTATIONS or name in ("$defs", "definitions"):
            continue
        branch = _without(root, name, value, depth)
        if branch is None:
            return None
        if branch is not False:
            branches.append(branch)
    return {"anyOf": branches} if branches else False


def _without(root: Schema, name: str, value: Any, depth: int) -> Schema | None:
    """The schema of the values that one keyword refuses."""
    if name in _OPPOSITES:
        return _number(name, value)
    if name in _KEYWORDS:
        return _KEYWORDS[name](value)
    if name in ("anyOf", "allOf") and isinstance(value, list) and value:
        parts = [negated(root, part, depth + 1) for part in value if isinstance(part, dict | bool)]
        if None in parts or len(parts) < len(value):
            return None
        return {"allOf" if name == "anyOf" else "anyOf": parts}
    if name == "properties" and isinstance(value, dict):
        return _properties(root, value, depth)
    if name == "not" and isinstance(value, dict | bool):
        return value
    return None


def _number(name: str, value: Any) -> Schema | None:
    kind, opposite, more = _OPPOSITES[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind != "number" and value + more < 0:
        return False
    return {"type": kind, opposite: value + more}


def _properties(root: Schema, properties: dict[str, Schema], depth: int) -> Schema | None:
    branches: list[Schema] = []
    for key, part in properties.items():
        other = negated(root, part, depth + 1)
        if other is None:
            return None
        if other is not False:
            branches.append({"type": "object", "properties": {key: other}, "required": [key]})
    return {"anyOf": branches} if branches else False


def _required(names: Any) -> Schema | None:
    if not isinstance(names, list):
        return None
    return {"anyOf": [{"type": "object", "properties": {name: False}} for name in names]} if names else False


def _type(value: Any) -> Schema | None:
    named = {value} if isinstance(value, str) else set(value)
    if "integer" in named and "number" not in named:
        return None  # no keyword expresses non-integer numbers
    left = [name for name in TYPES if name not in named]
    return {"type": left} if left else False


def _enum(values: Any) -> Schema | None:
    """All values of the types that do not occur, and the other values of the types that do."""
    if not isinstance(values, list):
        return None
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(json_type(value), []).append(value)
    if "object" in by_type or "array" in by_type:
        return None
    branches: list[Schema] = [{"type": [name for name in TYPES if name not in by_type]}]
    if texts := by_type.get("string"):
        branches.append({"type": "string", "pattern": other_texts(texts)})
    if numbers := sorted(by_type.get("number", ())):
        edges = [None, *numbers, None]
        for low, high in pairwise(edges):
            bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            branches.append({"type": "number"} | {name: edge for name, edge in bounds.items() if edge is not None})
    if (truths := by_type.get("boolean")) and len(set(truths)) == 1:
        branches.append({"const": not truths[0]})
    return {"anyOf": branches}


_KEYWORDS: dict[str, Callable[[Any], Schema | None]] = {
    "type": _type,
    "const": lambda value: _enum([value]),
    "enum": _enum,
    "required": _required,
}


def json_type(value: Any) -> str:
    """The value's type in JSON Schema; integers are numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
