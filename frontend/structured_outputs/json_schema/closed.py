"""Schemas whose objects have only the properties that they name, as arguments of calls should.

An object is closed only where that makes no schema unsatisfiable: not if it applies together with another subschema, as
the parts of `allOf` do, whose properties it would forbid.
"""

from typing import Any

from .negation import ANNOTATIONS
from .schema_walk import Schema, children, pointer, put

_DEFINITIONS = ("$defs", "definitions")
_SAME_VALUE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"))
_OPEN = frozenset(
    ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
)


def closed(root: Schema) -> Schema:
    """The schema with additional properties forbidden in objects that name properties and do not mention others."""
    if isinstance(root, bool):
        return root
    targets = {pointer("#", name, key) for name in _DEFINITIONS for key in root.get(name, ())}
    shared: frozenset[str] = frozenset()
    while (found := frozenset(_shared_in(root, "#", True, shared))) != shared:
        shared = found
    return root if shared - targets else _closed(root, "#", True, shared)


def _shared_in(schema: Schema, where: str, alone: bool, shared: frozenset[str]) -> set[str]:
    """References to what applies together with other subschemas to one value. `shared`: those found before."""
    if isinstance(schema, bool):
        return set()
    ref = schema.get("$ref")
    found = {ref} if isinstance(ref, str) and not (alone and _constraints(schema) == {"$ref"}) else set()
    for keys, part in children(schema):
        found |= _shared_in(part, pointer(where, *keys), _is_alone(schema, where, keys, alone, shared), shared)
    return found


def _closed(schema: Schema, where: str, alone: bool, shared: frozenset[str]) -> Schema:
    if isinstance(schema, bool):
        return schema
    result = dict(schema)
    for keys, part in children(schema):
        put(result, keys, _closed(part, pointer(where, *keys), _is_alone(schema, where, keys, alone, shared), shared))
    names_all = {*schema.get("required", ())} <= schema.get("properties", {}).keys()
    if alone and "properties" in schema and names_all and not _constraints(schema) & (_OPEN | _SAME_VALUE | {"$ref"}):
        result["additionalProperties"] = False
    return result


def _is_alone(
    schema: dict[str, Any], where: str, keys: tuple[str | int, ...], alone: bool, shared: frozenset[str]
) -> bool:
    """Whether the part at `keys` is all that applies to its value. `alone`: whether `schema` is."""
    name = str(keys[0])
    if name in _DEFINITIONS:
        return pointer(where, *keys) not in shared
    if name in _SAME_VALUE:
        has_one = name in ("anyOf", "oneOf") or (name == "allOf" and len(schema[name]) == 1)
        return alone and has_one and _constraints(schema) == {name}
    return alone and not schema.keys() & (_SAME_VALUE | {"$ref", "patternProperties", "contains"})


def _constraints(schema: dict[str, Any]) -> set[str]:
    return schema.keys() - ANNOTATIONS - {"type", *_DEFINITIONS}
