"""Grammar rules for arguments of a call that are written one by one with their names instead of as a JSON object."""

from collections.abc import Mapping
from typing import Any

from .grammar_builder import GrammarBuilder
from .json_schema.rewriting import Unsupported

_ROOT = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema"}
_DEFINITIONS = ("$defs", "definitions")
_TEXT = {"type", "title", "description", "default", "examples"}


class Parameters:
    """The node {"type": "parameters", "schema", "begin", "end", "separator", "plain_text", "lenient"}.

    `begin` contains {key}. With `plain_text` strings are written without quotes and escapes, other values as JSON.
    Parameters come in the order of the schema; optional ones may be left out.
    """

    def __init__(self, builder: GrammarBuilder, node: Mapping[str, Any]):
        self._builder, self._node = builder, node
        self._schema = node["schema"]
        self._lenient = node["lenient"] is True
        self._definitions = {name: self._schema[name] for name in _DEFINITIONS if name in self._schema}

    def rule(self) -> str:
        """The expression for all parameters, "" if there are none. Raises InvalidRequest."""
        if other := sorted(self._schema.keys() - _ROOT - {*_DEFINITIONS}):
            self._not_enforced(f"/{other[0]}", "this model writes arguments one by one")
        separator = self._builder.literal(self._node["separator"])
        first = more = ""  # the remaining parameters: as the first ones, or after another
        required = self._schema.get("required", [])
        for key, schema in reversed(self._schema.get("properties", {}).items()):
            part = self._part(key, schema)
            begun = self._builder.rule(f"{part} {more}")
            if key in required:
                first, more = begun, self._builder.rule(f"{separator} {begun}")
            else:
                first = self._builder.rule(f"{begun} | {first}" if first else f"{begun}?")
                more = self._builder.rule(f"({separator} {part})? {more}")
        return first

    def _part(self, key: str, schema: Any) -> str:
        builder, end = self._builder, self._node["end"]
        begin = builder.literal(self._node["begin"].replace("{key}", key))
        if self._node["plain_text"] and isinstance(schema, dict):
            if (choices := _choices(schema)) is not None:
                texts = " | ".join(builder.literal(text) for text in choices)
                return builder.rule(f"{begin} ({texts}) {builder.literal(end)}")
            if _is_text(schema):
                if other := sorted(schema.keys() - _TEXT - {"anyOf"}):
                    self._not_enforced(f"/properties/{key}/{other[0]}", "this model writes texts as they are")
                return builder.rule(f"{begin} {builder.text_before(end)}")
        if isinstance(schema, dict):
            schema = schema | self._definitions
        value = builder.json_schema(schema, lenient=self._lenient, fallback="{}")
        return builder.rule(f"{begin} {value} {builder.literal(end)}")

    def _not_enforced(self, where: str, why: str) -> None:
        if not self._lenient:
            raise Unsupported(where, f"{why}, so it cannot be enforced; leave it out, or set strict to false")
        self._builder.warnings.append(f"the schema at {where}: {why}, so it is not enforced")


def _choices(schema: Mapping[str, Any]) -> list[str] | None:
    """The texts that a value may have, if they are listed."""
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    is_listed = isinstance(values, list) and bool(values) and all(isinstance(value, str) and value for value in values)
    return values if is_listed else None


def _is_text(schema: Mapping[str, Any]) -> bool:
    variants = schema.get("anyOf")
    if isinstance(variants, list):
        return all(isinstance(each, dict) and each.get("type") in ("string", "null") for each in variants)
    return schema.get("type") in ("string", ["string"], ["string", "null"], ["null", "string"])
