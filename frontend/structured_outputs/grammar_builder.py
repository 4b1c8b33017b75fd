"""Builds the rules of a Lark grammar for llguidance."""

import json
import re
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from .helper_messages import AddedTokens
from .json_schema.closed import closed
from .json_schema.rewriting import Rewriting, Unsupported

MAX_RULES = 2000
ANY_TEXT = "/(?s:.*)/"
_ESCAPES_AND_SLASHES = re.compile(r"(?s)\\.|/|\n")


class GrammarBuilder:
    """Collects numbered rules; each method returns the expression that refers to its rules."""

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
            raise InvalidRequest(f"structural_tag makes more than {MAX_RULES} rules; use fewer parts")
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def literal(self, text: str) -> str:
        """A literal text. A part that spells an added token becomes the token, as the model was trained to write it."""
        parts, end = list[str](), 0
        for match in self._spelled.finditer(text):
            parts += [_quoted(text[end : match.start()]), f"<[{self._added[match[0]]}]>"]
            end = match.end()
        return " ".join(filter(None, [*parts, _quoted(text[end:])]))

    def json_schema(
        self, schema: Any, *, lenient: bool = False, closes: bool = False, fallback: str = '{"type": "object"}'
    ) -> str:
        """A JSON value of the schema. `lenient`: a schema that cannot be enforced is replaced by `fallback`, with a
        warning. `closes`: objects have only the properties that it names."""
        if not isinstance(schema, dict | bool):
            raise InvalidRequest(f"structural_tag: a schema is {schema!r:.100}; it must be an object")
        rewriting = Rewriting(schema)
        try:
            rewritten = rewriting.schema()
        except Unsupported as refused:
            if not lenient:
                raise
            self.warnings.append(f"{refused}; any {'value' if fallback == '{}' else 'object'} is accepted")
            return self.rule(f"%json {fallback}")
        self.warnings += rewriting.warnings
        if isinstance(rewritten, bool):
            rewritten = {} if rewritten else {"enum": []}
        rewritten.pop("x-guidance", None)
        if closes:
            rewritten = closed(rewritten)
        return self.rule("%json " + json.dumps(rewritten, ensure_ascii=False))

    def text_before(self, text: str) -> str:
        """Any text that does not contain `text`, followed by `text`."""
        if not text:
            return self.rule(ANY_TEXT)
        special = next((found for found in self._spelled.finditer(text) if found[0] in self._special), None)
        if special is not None:  # no free text contains the token
            before = regex_terminal(f"(?s:.*){re.escape(text[: special.start()])}")
            return self.rule(f"{self.rule(before)} {self.literal(text[special.start() :])}")
        return self.rule(f"{ANY_TEXT} {_quoted(text)}", "[lazy]")

    def triggered(self, triggers: dict[str, list[str]], *, least: bool, most_one: bool) -> str:
        """Free text in which each trigger is followed by one of its expressions. `least`: at least one trigger occurs;
        `most_one`: at most one, at the end."""
        branches = [
            f"{self.text_before(trigger)} ({' | '.join(bodies)})" for trigger, bodies in triggers.items() if bodies
        ]
        one = self.rule(" | ".join(branches))
        if most_one:
            return one if least else self.rule(f"{one} | {self.rule(ANY_TEXT)}")
        many = f"{one}+" if least else f"{one}*"
        return self.rule(f"{many} {self.rule(ANY_TEXT)}")


def regex_terminal(pattern: str) -> str:
    """The pattern between slashes, as Lark writes it; a slash within it may be escaped or not."""
    return f"/{_ESCAPES_AND_SLASHES.sub(_in_terminal, pattern)}/"


def _in_terminal(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(match[0], match[0])


def lark_string(text: str) -> str:
    """The text as a Lark string. llguidance takes no control character in one, U+007F included."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def _quoted(text: str) -> str:
    """The text as part of a rule. An empty text is not a valid terminal."""
    return lark_string(text) if text else ""
