"""The kinds of states that make up the table of a format of tool calls and reasoning.

A state reads text as its kind defines, then the next state continues. The next state `FAIL` means that the text turned
out not to be a call: it is content.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FAIL = "fail"
CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of one kind, up to one of the tags; each tag has a next state."""

    kind: Literal["content", "reasoning", "nothing"]
    tags: Mapping[str, str] = field(default_factory=dict)
    may_return: bool = True  # a tag and the text after it may turn out to be content
    calls: Mapping[str, str] = field(default_factory=dict)  # tags of calls within reasoning; only tokens write them


@dataclass(frozen=True, slots=True)
class Skip:
    """White space, then optionally one of the tags; `begins`: texts that the next state reads itself."""

    tags: Mapping[str, str]
    otherwise: str
    begins: Mapping[str, str] = field(default_factory=dict)
    keeps_space: bool = False  # the state `otherwise` reads the white space
    skips_space: bool = True
    ends_call: bool = False  # all parameters of the call have been read


@dataclass(frozen=True, slots=True)
class HeaderEnd:
    """A header that ends with `tag` and matches `pattern`, whose groups `name` and `id` begin a call; `is_known`: only
    if the request has that tool."""

    tag: str
    pattern: re.Pattern[str]
    next: str
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """Text that determines what follows. The first of `ends` that matches counts; if none does, it is not a call."""

    ends: tuple[HeaderEnd, ...]


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """A JSON object with the arguments of the call that a header began."""

    next: str


@dataclass(frozen=True, slots=True)
class MarkedArguments:
    """The arguments of the call that a header began, behind its first bracket; strings are between two marks."""

    next: str
    mark: str

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.mark,)


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A JSON object with a name and arguments, in any order; `is_known`: a call only if the request has that tool."""

    next: str
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls of known tools in Python's syntax, up to `end`; keyword arguments are literals."""

    next: str
    end: str


@dataclass(frozen=True, slots=True)
class Key:
    """A parameter's name, up to `end`, or up to another end, which has a next state of its own."""

    end: str
    next: str
    other_ends: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value as plain text, up to `end`; `trims`: drop a line break at each end."""

    end: str
    next: str
    trims: bool = False
    kind: Literal["declared", "text", "other"] = "declared"  # whether it is text: as the tool declares, yes, or no


State = Text | Skip | Header | JsonArguments | MarkedArguments | JsonCall | PythonCalls | Key | Value


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a model's outputs: states by name, and the first state."""

    states: Mapping[str, State]
    start: str = CONTENT
    tag_tokens: frozenset[str] = frozenset()  # the tags that only count if they are written as single tokens
