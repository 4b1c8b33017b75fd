"""Rewrites JSON Schema with the keywords that llguidance supports, without weakening it.

llguidance refuses unknown keywords (`not`, `if`, `uniqueItems`, `dependentRequired`, most of `oneOf` …). Many of their
uses can be expressed with `anyOf`, `properties: {name: false}`, `pattern` and bounds; the others are refused, with JSON
Pointer and keyword. Semantics are those of JSON Schema 2020-12; a `format` without a grammar is an annotation, as in
the specification, and gets a warning.
"""

from collections.abc import Callable
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from .disjoint import comparable, disjoint
from .finite import arrays_without_repetition, objects_of_size
from .negation import ANNOTATIONS, negated
from .numbers import fix_counts, inexact_number, round_bounds, unreachable_bound
from .patterns import fix_patterns, name_pattern
from .references import leads_back, with_named_targets
from .schema_walk import Schema, children, pointer, put, resolved

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 100_000
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
REFUSED = {
    "contains": "it cannot be enforced for arrays of any length",
    "minContains": "it depends on contains, which is not supported",
    "maxContains": "it depends on contains, which is not supported",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not")


class Unsupported(InvalidRequest):
    """A part of a schema that cannot become a grammar. `pointer` is its JSON Pointer from the schema's root."""

    def __init__(self, where: str, why: str):
        self.pointer, self.why = where, why
        super().__init__(f"the schema at {where or '/'}: {why}")


class Rewriting:
    """Rewrites one schema: `schema()` has the same meaning, and `warnings` lists the parts that are not enforced."""

    def __init__(self, root: Schema):
        self._root = with_named_targets(root) if isinstance(root, dict) else root
        self._num_subschemas = 0
        self.warnings: list[str] = []

    def schema(self) -> Schema:
        """Raises Unsupported."""
        return self._rewrite(self._root, "", 0)

    def _rewrite(self, schema: Schema, where: str, depth: int) -> Schema:
        self._num_subschemas += 1
        if depth > MAX_DEPTH:
            raise Unsupported(where, f"it is nested deeper than {MAX_DEPTH} levels")
        if self._num_subschemas > MAX_SUBSCHEMAS:
            raise Unsupported("", f"written out, its alternatives have more than {MAX_SUBSCHEMAS} parts")
        if isinstance(schema, bool):
            return schema
        for name, why in REFUSED.items():
            if name in schema:
                raise Unsupported(pointer(where, name), f"{name} is not supported: {why}")
        found, more = dict(schema), list[Schema]()
        if name := fix_counts(found):
            raise Unsupported(pointer(where, name), f"{name} is {found[name]!s:.60}, more than an output can have")
        for name, rewrite in _REWRITES.items():
            if name in found:
                more += rewrite(self, found, where)
        if more:
            found["allOf"] = [*found.get("allOf", ()), *more]
        fix_patterns(found)
        self._fix_numbers(found, where)
        for keys, part in children(found):
            put(found, keys, self._rewrite(part, pointer(where, *keys), depth + 1))
        return found

    def _fix_numbers(self, found: dict[str, Any], where: str) -> None:
        for name in ("const", "enum"):
            if (number := inexact_number(found.get(name))) is not None:
                why = f"{number!s:.60} is not exact in 64-bit floating point, as which numbers are enforced"
                raise Unsupported(pointer(where, name), why)
        if {"number", "integer"} & {*_types(found)} and (name := unreachable_bound(found)):
            raise Unsupported(pointer(where, name), f"{name} is {found[name]!s:.60}, beyond the 64-bit integers")
        round_bounds(found)

    # Each method removes its keywords from `found` and returns schemas that must hold as well.

    def _not(self, found: dict[str, Any], where: str) -> list[Schema]:
        return [self._negated(found.pop("not"), pointer(where, "not"), "not")]

    def _negated(self, schema: Schema, where: str, keyword: str) -> Schema:
        if (other := negated(self._root, schema)) is None:
            raise Unsupported(where, f"{keyword} is supported only for schemas that are simple to negate")
        return other

    def _if(self, found: dict[str, Any], where: str) -> list[Schema]:
        condition, then, otherwise = (found.pop(name, True) for name in ("if", "then", "else"))
        if then is True and otherwise is True:
            return []
        refused = self._negated(condition, pointer(where, "if"), "if")
        return [{"anyOf": [{"allOf": [condition, then]}, {"allOf": [refused, otherwise]}]}]

    def _then(self, found: dict[str, Any], where: str) -> list[Schema]:
        del found["then"]  # without `if` it has no effect
        return []

    def _else(self, found: dict[str, Any], where: str) -> list[Schema]:
        del found["else"]
        return []

    def _dependent_required(self, found: dict[str, Any], where: str) -> list[Schema]:
        dependents = found.pop("dependentRequired")
        return [_depends(name, {"required": names}) for name, names in dependents.items()]

    def _dependent_schemas(self, found: dict[str, Any], where: str) -> list[Schema]:
        return [_depends(name, part) for name, part in found.pop("dependentSchemas").items()]

    def _dependencies(self, found: dict[str, Any], where: str) -> list[Schema]:
        each = found.pop("dependencies").items()
        return [_depends(name, {"required": part} if isinstance(part, list) else part) for name, part in each]

    def _unique_items(self, found: dict[str, Any], where: str) -> list[Schema]:
        if found.pop("uniqueItems") is not True or found.get("maxItems", 2) <= 1:
            return []
        items = resolved(self._root, found.get("items", True))
        values = None
        if isinstance(items, dict) and "prefixItems" not in found and set(items) <= {"type", "enum", *ANNOTATIONS}:
            values = [False, True] if items.get("type") == "boolean" else items.get("enum")
        if isinstance(values, list):
            least, most = found.get("minItems", 0), found.get("maxItems")
            distinct = {comparable(value): value for value in values}
            arrays = arrays_without_repetition(list(distinct.values()), least, most)
            if arrays is not None:
                for name in ("items", "minItems", "maxItems"):
                    found.pop(name, None)
                return [{"anyOf": arrays}] if arrays else [False]
        raise Unsupported(
            pointer(where, "uniqueItems"),
            "uniqueItems is supported only for items with few enum values; leave it out, or list the values",
        )

    def _one_of(self, found: dict[str, Any], where: str) -> list[Schema]:
        """Exclusive branches become alternatives; others are made exclusive by adding the negation of the rest."""
        branches = found.pop("oneOf")
        around: dict[str, Any] = {name: found[name] for name in ("type", "required", "properties") if name in found}
        each = [_within(around, resolved(self._root, branch)) for branch in branches]
        pairs = ((i, j) for i in range(len(each)) for j in range(i + 1, len(each)))
        if all(disjoint(self._root, each[i], each[j]) for i, j in pairs):
            return [{"anyOf": branches}]
        exact: list[Schema] = []
        for i, branch in enumerate(branches):
            others = [
                negated(self._root, other)
                for j, other in enumerate(branches)
                if j != i and not disjoint(self._root, each[i], each[j])
            ]
            if None in others or len(branches) > MAX_EXACT_BRANCHES:
                raise Unsupported(
                    pointer(where, "oneOf"),
                    "oneOf is supported only for branches that clearly exclude each other; add a required property "
                    "with a different const to each, or use anyOf",
                )
            exact.append({"allOf": [branch, *(other for other in others if other is not None)]})
        return [{"anyOf": exact}]

    def _num_properties(self, found: dict[str, Any], where: str) -> list[Schema]:
        """List the combinations of properties when all are named; llguidance handles the other cases."""
        properties, required = found.get("properties", {}), found.get("required", [])
        is_finite = found.get("additionalProperties") is False and not found.get("patternProperties")
        if not is_finite or set(properties) <= set(required) or not set(required) <= set(properties):
            return []
        least, most = found.get("minProperties", 0), found.get("maxProperties")
        objects = objects_of_size(list(properties), required, least, most)
        if objects is None:
            return []
        for name in ("minProperties", "maxProperties"):
            found.pop(name, None)
        not_objects = [name for name in _types(found) if name != "object"]
        branches = [*objects, *([{"type": not_objects}] if not_objects else [])]
        return [{"anyOf": branches}] if branches else [False]

    def _property_names(self, found: dict[str, Any], where: str) -> list[Schema]:
        names = resolved(self._root, found.pop("propertyNames"))
        if names is True or (isinstance(names, dict) and set(names) <= {"type"} and names.get("type") == "string"):
            return []
        matches, additional = name_pattern(names), found.get("additionalProperties", True)
        # patternProperties apply to the named properties as well, which only `true` leaves unchanged.
        is_open = additional is True or (additional is not False and not found.get("properties"))
        if matches is None or found.get("patternProperties") or not (is_open or additional is False):
            raise Unsupported(
                pointer(where, "propertyNames"),
                "propertyNames is supported only with enum, pattern, minLength and maxLength",
            )
        pattern, allows = matches
        found["properties"] = {
            name: part if allows(name) else False for name, part in found.get("properties", {}).items()
        }
        if is_open:
            found["patternProperties"] = {pattern: additional}
            found["additionalProperties"] = False
        return []

    def _unevaluated_properties(self, found: dict[str, Any], where: str) -> list[Schema]:
        value = found.pop("unevaluatedProperties")
        if value is not True and any(name in found for name in _APPLICATORS):
            raise Unsupported(
                pointer(where, "unevaluatedProperties"),
                "unevaluatedProperties is supported only without allOf, anyOf, oneOf, if or $ref in the same schema",
            )
        found.setdefault("additionalProperties", value)
        return []

    def _format(self, found: dict[str, Any], where: str) -> list[Schema]:
        if isinstance(found["format"], str) and found["format"] not in FORMATS:
            name = found.pop("format")
            self.warnings.append(f"the schema at {where or '/'}: format {name!r:.60} is not enforced")
        return []

    def _exclusive(self, found: dict[str, Any], where: str) -> list[Schema]:
        """Convert draft 4's flags of minimum and maximum."""
        for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(is_exclusive := found.get(flag), bool):
                del found[flag]
                if is_exclusive and bound in found:
                    found[flag] = found.pop(bound)
        return []

    def _references(self, found: dict[str, Any], where: str) -> list[Schema]:
        ref = found["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise Unsupported(
                pointer(where, "$ref"), f"$ref {ref!r:.100} is not within this schema; include its target"
            )
        if leads_back(self._root, ref):
            raise Unsupported(pointer(where, "$ref"), f"$ref {ref!r:.100} leads back to itself")
        return []


MAX_EXACT_BRANCHES = 6
_REWRITES: dict[str, Callable[[Rewriting, dict[str, Any], str], list[Schema]]] = {
    "$ref": Rewriting._references,
    "not": Rewriting._not,
    "if": Rewriting._if,
    "then": Rewriting._then,
    "else": Rewriting._else,
    "dependentRequired": Rewriting._dependent_required,
    "dependentSchemas": Rewriting._dependent_schemas,
    "dependencies": Rewriting._dependencies,
    "uniqueItems": Rewriting._unique_items,
    "oneOf": Rewriting._one_of,
    "unevaluatedProperties": Rewriting._unevaluated_properties,
    "minProperties": Rewriting._num_properties,
    "maxProperties": Rewriting._num_properties,
    "propertyNames": Rewriting._property_names,
    "format": Rewriting._format,
    "exclusiveMinimum": Rewriting._exclusive,
    "exclusiveMaximum": Rewriting._exclusive,
}


def _depends(name: str, schema: Schema) -> Schema:
    """A schema that requires `schema` if the property is present."""
    return {"anyOf": [{"properties": {name: False}}, {"allOf": [{"required": [name]}, schema]}]}


def _types(schema: dict[str, Any]) -> list[str]:
    named = schema.get("type", ["null", "boolean", "number", "string", "array", "object"])
    return [named] if isinstance(named, str) else list(named)


def _within(around: dict[str, Any], branch: Schema) -> Schema:
    """The branch with the keywords of its surrounding schema that help to distinguish branches."""
    if isinstance(branch, bool):
        return branch
    together = dict(branch)
    together.setdefault("type", around.get("type"))
    if together["type"] is None:
        del together["type"]
    together["required"] = [*branch.get("required", ()), *around.get("required", ())]
    return together
