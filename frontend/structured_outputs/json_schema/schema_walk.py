"""JSON schemas as trees: subschemas, JSON Pointers to them, local references."""

import re
import warnings
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any] | bool
SINGLE = ("additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def pointer(parent: str, *keys: str | int) -> str:
    """The JSON Pointer (RFC 6901) of a part of the value at `parent`."""
    return parent + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def children(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Each direct subschema, and the keys that lead to it."""
    for name, value in schema.items():
        if name in SINGLE or name in ("unevaluatedProperties", "unevaluatedItems"):
            if is_schema(value):
                yield (name,), value
        elif name in LISTS or (name == "items" and isinstance(value, list)):
            if isinstance(value, list):
                yield from (((name, i), part) for i, part in enumerate(value) if is_schema(part))
        elif name == "items" and is_schema(value):
            yield (name,), value
        elif (name in MAPS or name == "dependencies") and isinstance(value, dict):
            yield from (((name, key), part) for key, part in value.items() if is_schema(part))


def put(found: dict[str, Any], keys: tuple[str | int, ...], part: Schema) -> None:
    """Replace a direct subschema, copying the containers on the way to it."""
    name = str(keys[0])
    if len(keys) == 1:
        found[name] = part
        return
    holder: Any = found[name].copy()
    holder[keys[1]] = part
    found[name] = holder


def resolved(root: Schema, schema: Schema) -> Schema:
    """The target of a schema that is only a local reference; the schema itself if it is not, or has no target."""
    seen = set()
    while isinstance(schema, dict) and isinstance(ref := schema.get("$ref"), str):
        if len(schema) > 1 or ref in seen or (found := look_up(root, ref)) is None:
            return schema
        seen.add(ref)
        schema = found
    return schema


def look_up(root: Schema, ref: str) -> Schema | None:
    """The subschema at a local reference, "#" or "#/…"; None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found: Any = root
    for key in ref[2:].split("/") if len(ref) > 1 else ():
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found if isinstance(found, dict | bool) else None


def compiled_pattern(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if Python does not support it or interprets it differently."""
    try:
        with warnings.catch_warnings(action="error"):
            return re.compile(pattern)
    except (re.error, FutureWarning):
        return None
