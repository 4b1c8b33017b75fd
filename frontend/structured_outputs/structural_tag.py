"""Structural tags: free text in which some texts begin parts of a given form. As a Lark grammar of llguidance.

Two spellings are read: `structures` with `triggers`, and `format`, a tree of typed nodes (XGrammar's documentation of
structural tags has both).
"""

import json
import re
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from .helper_messages import AddedTokens
from .json_schema.rewriting import Rewriting, Unsupported

MAX_DEPTH = 32
MAX_RULES = 2000
ANY_TEXT = "/(?s:.*)/"


def structural_tag_grammar(text: str, added: AddedTokens) -> tuple[str, list[str]]:
    """The grammar, and what of the request it does not enforce. Raises InvalidRequest that names the node."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"structural_tag is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest(f"structural_tag is {given!r:.100}; it must be an object")
    builder = GrammarBuilder(added)
    if "format" in given:
        return builder.grammar(builder.node(given["format"], "format")), builder.warnings
    return builder.grammar(builder.node(_as_format(given), "structures")), builder.warnings


def _as_format(given: dict[str, Any]) -> dict[str, Any]:
    """The older spelling as the newer."""
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise InvalidRequest("structural_tag has neither format nor structures and triggers")
    tags = [
        {"type": "tag", "content": {"type": "json_schema", "json_schema": part.get("schema", {})}, **part}
        for part in structures
        if isinstance(part, dict)
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class GrammarBuilder:
    """Rules under numbers of their own; `node` and the like return what stands for them in another rule."""

    def __init__(self, added: AddedTokens) -> None:
        tags = {text: token for text, token in added.plain.items() if text.startswith("<")}  # others are runs of spaces
        self._added = {**tags, **added.special}
        self._special = added.special
        spelled = sorted(filter(None, self._added), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
        self._rules: list[str] = []
        self.warnings: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules])

    def rule(self, body: str, attributes: str = "") -> str:
        """The name of a new rule."""
        if len(self._rules) >= MAX_RULES:
            raise InvalidRequest(f"structural_tag makes more than {MAX_RULES} rules; give fewer parts")
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def literal(self, text: str) -> str:
        """A text; what spells an added token is that token, as the model was trained to write it."""
        parts, end = list[str](), 0
        for match in self._spelled.finditer(text):
            parts += [_quoted(text[end : match.start()]), f"<[{self._added[match[0]]}]>"]
            end = match.end()
        return " ".join(filter(None, [*parts, _quoted(text[end:])]))

    def json_schema(self, schema: Any, *, lenient: bool = False) -> str:
        """`lenient`: any object, with a warning, where the schema cannot be enforced."""
        if not isinstance(schema, dict | bool):
            raise InvalidRequest(f"structural_tag: a schema is {schema!r:.100}; it must be an object")
        rewriting = Rewriting(schema)
        try:
            rewritten = rewriting.schema()
        except Unsupported as refused:
            if not lenient:
                raise
            self.warnings.append(f"{refused}; any object is accepted")
            return self.rule('%json {"type": "object"}')
        self.warnings += rewriting.warnings
        if isinstance(rewritten, bool):
            rewritten = {} if rewritten else {"enum": []}
        rewritten.pop("x-guidance", None)
        return self.rule("%json " + json.dumps(rewritten, ensure_ascii=False))

    def text_before(self, text: str) -> str:
        """Any text that does not hold `text`, and then it."""
        if not text:
            return self.rule(ANY_TEXT)
        if text in self._special:
            return self.rule(f"{self.rule(ANY_TEXT)} {self.literal(text)}")
        return self.rule(f"{ANY_TEXT} {_quoted(text)}", "[lazy]")

    def triggered(self, triggers: dict[str, list[str]], *, least: int, most_one: bool, ends: bool = True) -> str:
        """Free text in which each of `triggers` goes on as one of its expressions says."""
        branches = [
            f"{self.text_before(trigger)} ({' | '.join(bodies)})" for trigger, bodies in triggers.items() if bodies
        ]
        one = self.rule(" | ".join(branches))
        many = one if most_one and least else f"{one}?" if most_one else f"{one}+" if least else f"{one}*"
        return self.rule(f"{many} {self.rule(ANY_TEXT)}" if ends else many)

    def node(self, node: Any, where: str, depth: int = 0, until: str = "") -> str:
        """`until`: what follows a text that may be anything."""
        if not isinstance(node, dict) or not isinstance(kind := node.get("type"), str):
            raise InvalidRequest(f"structural_tag: {where} is {node!r:.100}; it must be an object with a type")
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"structural_tag: {where} lies deeper than {MAX_DEPTH} levels")
        try:
            return self._node(kind, node, where, depth, until)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"structural_tag: {where} of type {kind!r:.40} lacks or misuses {error}") from None

    def _node(self, kind: str, node: dict[str, Any], where: str, depth: int, until: str) -> str:
        match kind:
            case "const_string":
                return f"{self.literal(node['value'])} {self.literal(until)}"
            case "json_schema":
                schema = self.json_schema(node["json_schema"], lenient=node.get("lenient") is True)
                return f"{schema} {self.literal(until)}"
            case "regex":
                return f"/{node['pattern'].replace('/', chr(92) + '/')}/ {self.literal(until)}"
            case "any_text":
                return self.text_before(until)
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
        """`begun`: how much of its beginning stands there already."""
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
        return self.triggered(triggers, least=least, most_one=most_one, ends=not most_one)

    def _separated_tags(self, node: dict[str, Any], where: str, depth: int) -> str:
        one = self.rule(" | ".join(self._tag(tag, where, depth) for tag in node["tags"]))
        if node.get("stop_after_first"):
            return one if node.get("at_least_one") else f"{one}?"
        many = self.rule(f"{one} ({self.literal(node['separator'])} {one})*")
        return many if node.get("at_least_one") else f"{many}?"


def _quoted(text: str) -> str:
    """As Lark writes it; the empty text is no terminal."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _unknown(where: str, kind: str) -> InvalidRequest:
    known = "const_string, json_schema, regex, any_text, sequence, or, tag, triggered_tags, tags_with_separator"
    return InvalidRequest(f"structural_tag: {where} has the type {kind!r:.40}; known are {known}")
