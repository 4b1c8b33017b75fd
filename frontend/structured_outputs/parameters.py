"""Grammar rules for arguments of a call that are written one by one with their names instead of as a JSON object."""

from collections.abc import Mapping
from typing import Any

from .grammar_builder import GrammarBuilder
from .json_schema.negation import ANNOTATIONS
from .json_schema.references import with_named_targets
from .json_schema.rewriting import Unsupported
from .json_schema.schema_walk import pointer
from .json_schema.texts import listed_texts, other_keywords, takes_text

_ROOT = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_DEFINITIONS = ("$defs", "definitions")


class Parameters:
    """The node {"type": "parameters", "schema", "begin", "end", "separator", "plain_text", "text_begin", "text_end",
    "lenient"}.

    `begin` contains {key}. With `plain_text` strings are written without quotes and escapes, between `text_begin` and
    `text_end`, and other values as JSON.
    Parameters come in the order of the schema; optional ones may be left out.
    """

    def __init__(self, builder: GrammarBuilder, node: Mapping[str, Any]):
        self._builder, self._node = builder, node
        self._schema = with_named_targets(node["schema"], divides=True)
        self._lenient = node["lenient"] is True
        self._definitions = {name: self._schema[name] for name in _DEFINITIONS if name in self._schema}

    def rule(self) -> str:
        """The expression for all parameters, "" if there are none. Raises InvalidRequest."""
        if other := sorted(self._schema.keys() - _ROOT - {*_DEFINITIONS}):
            self._not_enforced(f"/{other[0]}", "this model writes arguments one by one")
        separator = self._builder.literal(self._node["separator"])
        first = more = ""  # the remaining parameters: as the first ones, or after another
        required, properties = self._schema.get("required", []), self._schema.get("properties", {})
        if not {*required} <= properties.keys():
            self._not_enforced("/required", "it names an argument that is not among the properties")
        for key, schema in reversed(properties.items()):
            part = self._part(key, schema)
            begun = self._builder.rule(f"{part} {more}")
            if key in required:
                first, more = begun, self._builder.rule(f"{separator} {begun}")
            else:
                first = self._builder.rule(f"{begun} | {first}" if first else f"{begun}?")
                more = self._builder.rule(f"({separator} {part})? {more}")
        return first

    def _part(self, key: str, schema: Any) -> str:
        for written in (self._node["begin"], self._node["text_begin"]):
            behind = written.partition("{key}")[2].partition("\n")[0]
            if behind and behind in key:  # a reader would take it for the name's end, and the rest for the value
                raise Unsupported(
                    pointer("/properties", key), f"this model ends an argument's name with {behind!r}; rename it"
                )
        builder, is_text = self._builder, self._node["plain_text"] and takes_text(self._schema, schema)
        begin = builder.literal(self._node["text_begin" if is_text else "begin"].replace("{key}", key))
        end = self._node["text_end" if is_text else "end"]
        if is_text:
            if other := next(other_keywords(self._schema, schema, pointer("/properties", key)), ""):
                self._not_enforced(other, "this model writes texts as they are")
            if (texts := listed_texts(self._schema, schema)) is None:
                return builder.rule(f"{begin} {builder.text_before(end)}")
            return builder.rule(f"{begin} ({' | '.join(map(builder.literal, texts))}) {builder.literal(end)}")
        if isinstance(schema, dict):
            schema = schema | self._definitions
        value = builder.json_schema(schema, lenient=self._lenient, closes=True, fallback="{}")
        return builder.rule(f"{begin} {value} {builder.literal(end)}")

    def _not_enforced(self, where: str, why: str) -> None:
        if not self._lenient:
            raise Unsupported(where, f"{why}, so it cannot be enforced; leave it out, or set strict to false")
        self._builder.warnings.append(f"the schema at {where}: {why}, so it is not enforced")
