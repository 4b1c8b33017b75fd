"""Decides whether two schemas have no instance in common; a `oneOf` of such branches is equivalent to `anyOf`."""

import json
from typing import Any

from .negation import TYPES, json_type
from .schema_walk import Schema, compiled_pattern, resolved

MAX_DEPTH = 12
_ALL = frozenset(TYPES) | {"integer"}
_RANGES = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))


def disjoint(root: Schema, first: Schema, second: Schema, depth: int = 0) -> bool:
    """True only if it is certain."""
    first, second = resolved(root, first), resolved(root, second)
    if first is False or second is False:
        return True
    if first is True or second is True or depth > MAX_DEPTH:
        return False
    values, others = _values(first), _values(second)
    if values is not None and others is not None:
        return values.isdisjoint(others)
    common = _types(first) & _types(second)
    return (
        not common
        or (common <= {"object"} and _objects(root, first, second, depth))
        or (common <= {"number", "integer"} and _apart(first, second, "minimum", "maximum"))
        or (common == {"string"} and _apart(first, second, *_RANGES[0]))
        or (common == {"array"} and _apart(first, second, *_RANGES[1]))
        or _by_parts(root, first, second, depth)
        or _by_parts(root, second, first, depth)
    )


def _values(schema: dict[str, Any]) -> set[str] | None:
    """The values of `const` or `enum`, made comparable; 1 and 1.0 are equal."""
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    return {comparable(value) for value in found} if isinstance(found, list) else None


def comparable(value: Any) -> str:
    """A string that is equal for values that are equal in JSON Schema."""
    return json.dumps(_with_integers(value), sort_keys=True)


def _with_integers(value: Any) -> Any:
    """The value with 1 in place of 1.0, at any depth."""
    if isinstance(value, dict):
        return {name: _with_integers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _types(schema: dict[str, Any]) -> set[str]:
    named = schema.get("type")
    types = set(_ALL) if named is None else {named} if isinstance(named, str) else set(named)
    if "number" in types:
        types.add("integer")
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        allowed = set(map(json_type, values))
        types &= allowed | ({"integer"} if "number" in allowed else set())
    return types


def _objects(root: Schema, first: dict[str, Any], second: dict[str, Any], depth: int) -> bool:
    required = {*_names(first, "required"), *_names(second, "required")}
    for name in required:
        if name in _properties(first) and name in _properties(second):
            if disjoint(root, _properties(first)[name], _properties(second)[name], depth + 1):
                return True
        elif _forbids(first, name) or _forbids(second, name):
            return True
    return _apart(first, second, *_RANGES[2])


def _names(schema: dict[str, Any], keyword: str) -> list[str]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _properties(schema: dict[str, Any]) -> dict[str, Schema]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _forbids(schema: dict[str, Any], name: str) -> bool:
    if name in _properties(schema):
        return _properties(schema)[name] is False
    patterns = schema.get("patternProperties") or {}
    return schema.get("additionalProperties") is False and not any(_may_match(pattern, name) for pattern in patterns)


def _may_match(pattern: str, name: str) -> bool:
    compiled = compiled_pattern(pattern)
    return compiled is None or compiled.search(name) is not None


def _apart(first: dict[str, Any], second: dict[str, Any], low: str, high: str) -> bool:
    """Whether the maximum of one is below the minimum of the other."""
    for one, other in ((first, second), (second, first)):
        least, most = one.get(low), other.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and most < least:
            return True
    return False


def _by_parts(root: Schema, schema: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
    """A union is disjoint from `other` if every part is; an intersection is if any part is."""
    for name in ("anyOf", "oneOf"):
        parts = schema.get(name)
        if isinstance(parts, list) and parts and all(disjoint(root, part, other, depth + 1) for part in parts):
            return True
    parts = schema.get("allOf")
    return isinstance(parts, list) and any(disjoint(root, part, other, depth + 1) for part in parts)
