"""Turns a structural tag, free text in which certain texts begin parts of a required form, into a Lark grammar.

Two syntaxes are supported: `structures` with `triggers`, and `format`, a tree of typed nodes (see XGrammar's
documentation of structural tags).
"""

import json
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from .grammar_builder import GrammarBuilder, regex_terminal
from .helper_messages import AddedTokens
from .parameters import Parameters

MAX_DEPTH = 32


def structural_tag_grammar(text: str, added: AddedTokens) -> tuple[str, list[str]]:
    """The grammar, and warnings about parts that it does not enforce. Raises InvalidRequest that names the node."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"structural_tag is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest(f"structural_tag is {given!r:.100}; it must be an object")
    builder = _StructuralTag(added)
    if "format" in given:
        return builder.grammar(builder.node(given["format"], "format")), builder.warnings
    return builder.grammar(builder.node(_as_format(given), "structures")), builder.warnings


def _as_format(given: dict[str, Any]) -> dict[str, Any]:
    """Convert the older syntax to the newer."""
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise InvalidRequest("structural_tag has neither format nor structures and triggers")
    tags = [
        {"type": "tag", "content": {"type": "json_schema", "json_schema": part.get("schema", {})}, **part}
        for part in structures
        if isinstance(part, dict)
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _StructuralTag(GrammarBuilder):
    """Turns the nodes of a format into rules."""

    def node(self, node: Any, where: str, depth: int = 0, until: str = "") -> str:
        """`until`: the text that ends a free text."""
        if not isinstance(node, dict) or not isinstance(kind := node.get("type"), str):
            raise InvalidRequest(f"structural_tag: {where} is {node!r:.100}; it must be an object with a type")
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"structural_tag: {where} is nested deeper than {MAX_DEPTH} levels")
        try:
            return self._node(kind, node, where, depth, until)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"structural_tag: {where} of type {kind!r:.40} lacks or misuses {error}") from None

    def _node(self, kind: str, node: dict[str, Any], where: str, depth: int, until: str) -> str:
        match kind:
            case "const_string":
                return f"{self.literal(node['value'])} {self.literal(until)}"
            case "json_schema":
                lenient, closes = node.get("lenient") is True, node.get("closes") is True
                schema = self.json_schema(node["json_schema"], lenient=lenient, closes=closes)
                return f"{schema} {self.literal(until)}"
            case "parameters":
                return f"{Parameters(self, node).rule()} {self.literal(until)}"
            case "regex":
                return f"{regex_terminal(node['pattern'])} {self.literal(until)}"
            case "any_text":
                return self.text_before(until)
            case "sequence" | "or" if not node["elements"]:
                raise InvalidRequest(f"structural_tag: {where} of type {kind!r} has no elements; it needs one or more")
            case "sequence":
                *first, last = node["elements"]
                parts = [self.node(part, f"{where}.elements", depth + 1) for part in first]
                return self.rule(" ".join([*parts, self.node(last, f"{where}.elements", depth + 1, until)]))
            case "or":
                parts = [self.node(part, f"{where}.elements", depth + 1, until) for part in node["elements"]]
                return self.rule(" | ".join(parts))
            case "tag":
                return f"{self._tag(node, where, depth)} {self.literal(until)}"
            case "triggered_tags":
                return f"{self._triggered_tags(node, where, depth)} {self.literal(until)}"
            case "tags_with_separator":
                return f"{self._separated_tags(node, where, depth)} {self.literal(until)}"
        raise _unknown(where, kind)

    def _tag(self, node: dict[str, Any], where: str, depth: int, begun: str = "") -> str:
        """`begun`: the part of its beginning that was already written."""
        content = self.node(node["content"], f"{where}.content", depth + 1, node["end"])
        return self.rule(f"{self.literal(node['begin'][len(begun) :])} {content}")

    def _triggered_tags(self, node: dict[str, Any], where: str, depth: int) -> str:
        triggers: dict[str, list[str]] = {trigger: [] for trigger in node["triggers"]}
        for tag in node["tags"]:
            trigger = next((each for each in triggers if each and tag["begin"].startswith(each)), None)
            if trigger is None:
                raise InvalidRequest(f"structural_tag: no trigger begins the tag {tag['begin']!r:.60}")
            triggers[trigger].append(self._tag(tag, where, depth, trigger))
        least, most_one = bool(node.get("at_least_one")), bool(node.get("stop_after_first"))
        return self.triggered(triggers, least=least, most_one=most_one)

    def _separated_tags(self, node: dict[str, Any], where: str, depth: int) -> str:
        one = self.rule(" | ".join(self._tag(tag, where, depth) for tag in node["tags"]))
        if node.get("stop_after_first"):
            return one if node.get("at_least_one") else f"{one}?"
        many = self.rule(f"{one} ({self.literal(node['separator'])} {one})*")
        return many if node.get("at_least_one") else f"{many}?"


def _unknown(where: str, kind: str) -> InvalidRequest:
    known = "const_string, json_schema, regex, any_text, sequence, or, tag, triggered_tags, tags_with_separator"
    return InvalidRequest(f"structural_tag: {where} has the type {kind!r:.40}; known are {known}")
