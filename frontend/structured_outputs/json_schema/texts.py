"""Schemas whose values are texts. Some formats write these without quotes and escapes, and all other values as JSON.

A text is never null then, although its schema may allow null: both are written alike.
"""

from collections.abc import Iterator
from typing import Any

from .negation import ANNOTATIONS
from .schema_walk import Schema, pointer, resolved

MAX_DEPTH = 16
_NULL = {"type": "null"}
_TYPES = ("string", ["string"], ["string", "null"], ["null", "string"])
_LISTS = ("anyOf", "oneOf")
_ENFORCED = {"type", "enum", "const", *_LISTS}


def takes_text(root: Schema, schema: Any, depth: int = 0) -> bool:
    """Whether a value is text even if it looks like another type."""
    bare = _bare(root, schema)
    if not isinstance(bare, dict) or depth > MAX_DEPTH:
        return False
    if (variants := _variants(root, bare)) is not None:
        return bool(variants) and all(takes_text(root, variant, depth + 1) for _, variant in variants)
    if (values := _values(bare)) is not None:
        return bool(values) and all(isinstance(value, str) for value in values)
    return bare.get("type") in _TYPES


def listed_texts(root: Schema, schema: Any) -> list[str] | None:
    """The texts that a schema of texts allows, if it lists them."""
    bare = _bare(root, schema)
    if (variants := _variants(root, bare)) is None:
        return _values(bare)
    found = [listed_texts(root, variant) for _, variant in variants]
    return None if None in found else [text for texts in found for text in texts or ()]


def other_keywords(root: Schema, schema: Any, where: str) -> Iterator[str]:
    """The JSON Pointers of what a schema of texts demands besides a type and a list of texts; `where`: its own."""
    bare = _bare(root, schema)
    variants = _variants(root, bare) or []
    if "oneOf" in bare and len(variants) > 1:
        yield pointer(where, "oneOf")
    yield from (pointer(where, name) for name in sorted(bare.keys() - _ENFORCED))
    for keys, variant in variants:
        yield from other_keywords(root, variant, pointer(where, *keys))


def _bare(root: Schema, schema: Any) -> Any:
    """The schema without annotations, and what it stands for if it is only a reference or an `allOf` of one schema."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict):
            return schema
        kept = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        parts = kept.get("allOf") if len(kept) == 1 else None
        schema = parts[0] if isinstance(parts, list) and len(parts) == 1 else resolved(root, kept)
        if schema is kept:
            break
    return schema


def _variants(root: Schema, schema: dict[str, Any]) -> list[tuple[tuple[str, int], Schema]] | None:
    """The alternatives besides null, and the keys that lead to them; None if the schema has none."""
    name = next((name for name in _LISTS if isinstance(schema.get(name), list) and schema[name]), None)
    if name is None:
        return None
    return [((name, i), part) for i, part in enumerate(schema[name]) if _bare(root, part) != _NULL]


def _values(schema: dict[str, Any]) -> list[Any] | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None
