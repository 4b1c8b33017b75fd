"""The required form of an output: as a request states it, and as a worker reads it."""

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from .message import Record, TokenIds, has_half_pair

MAX_GRAMMAR_CHARS = 1 << 19  # of one schema, expression or grammar; 2 MB of UTF-8 fit a frame
MAX_CHOICES = 4096
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

GrammarText = Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARS)]


class Grammar(Record, frozen=True):
    """The grammar of one output. The worker compiles it, and replays the row's output through it after a restart."""

    source: GrammarText  # JSON of an llguidance grammar: {"grammars": [{"json_schema": …} or {"lark_grammar": …}]}
    # The output is free up to the first of these tokens, but cannot end; empty: the grammar binds its first token.
    after: TokenIds = ()
    opens: TokenIds = ()  # the output is free only if its first token is one of these; empty: in any case


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The form of an output, by exactly one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`.

    Names are vLLM's. Raises InvalidRequest naming the field, the value and the limit. The frontend turns it into a
    Grammar before it sends a request.
    """

    json: GrammarText | None = None  # a JSON schema; given as an object it becomes its text
    regex: GrammarText | None = None  # of the whole output; Rust's syntax, without look-around
    choice: Annotated[tuple[GrammarText, ...], Meta(max_length=MAX_CHOICES)] | None = None
    grammar: GrammarText | None = None  # Lark as llguidance has it, or GBNF
    json_object: bool | None = None
    structural_tag: GrammarText | None = None  # as json
    disable_any_whitespace: bool = False  # in JSON, outside of strings
    whitespace_pattern: GrammarText | None = None  # a regular expression for the whitespace
    disable_additional_properties: bool = False  # of objects whose schema does not allow them explicitly

    def __post_init__(self) -> None:
        for name, kinds in (("json", dict | bool), ("structural_tag", dict)):
            if isinstance(value := getattr(self, name), kinds):
                msgspec.structs.force_setattr(self, name, _as_text(name, value))
        if isinstance(choice := cast(Any, self.choice), list):
            msgspec.structs.force_setattr(self, "choice", tuple(choice))
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has no form"
            raise _invalid(f"{found}; give exactly one of {', '.join(KINDS)}")
        self._check_kind()
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(f"is {getattr(self, name)!r:.100}; it must be true or false", name)
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern)
        if self.json is None and self.json_object is None:
            for name in ("disable_any_whitespace", "whitespace_pattern", "disable_additional_properties"):
                if getattr(self, name):
                    raise _invalid("is for JSON; give it together with json or json_object", name)

    def _check_kind(self) -> None:
        if self.json_object is not None and self.json_object is not True:
            raise _invalid(f"is {self.json_object!r:.100}; it must be true, or left out", "json_object")
        for name in ("json", "regex", "grammar", "structural_tag"):
            if (value := getattr(self, name)) is not None:
                _check_text(name, value)
        if self.choice is not None:
            _check_choice(self.choice)


def _as_text(name: str, value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise _invalid(f"is not JSON: {error}", name) from None


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise _invalid(f"is of type {type(text).__name__}; it must be a string", name)
    if not 0 < len(text) <= MAX_GRAMMAR_CHARS:
        raise _invalid(f"has {len(text)} characters; 1 to {MAX_GRAMMAR_CHARS} are allowed", name)
    if has_half_pair(text):
        raise _invalid("has half of a surrogate pair, which is not valid text", name)


def _check_choice(choice: Any) -> None:
    if not isinstance(choice, tuple) or not all(isinstance(text, str) for text in choice):
        raise _invalid(f"is {choice!r:.100}; it must be a list of strings", "choice")
    if not 0 < len(choice) <= MAX_CHOICES:
        raise _invalid(f"has {len(choice)} entries; 1 to {MAX_CHOICES} are allowed", "choice")
    if not all(choice):
        raise _invalid("has an empty string; every choice needs at least one character", "choice")
    if (size := sum(map(len, choice))) > MAX_GRAMMAR_CHARS:
        raise _invalid(f"has {size} characters; at most {MAX_GRAMMAR_CHARS} are allowed", "choice")
    if any(map(has_half_pair, choice)):
        raise _invalid("has half of a surrogate pair, which is not valid text", "choice")


def _invalid(what: str, name: str = "") -> InvalidRequest:
    field = f"structured_outputs.{name}" if name else "structured_outputs"
    return InvalidRequest(f"{field} {what}", field)
