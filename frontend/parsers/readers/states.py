"""The states of a format of tool calls and reasoning: a table of states of a few kinds.

A state reads text as far as its kind defines, then the next state continues. `FAIL` as the next state means that the
text is not a call after all: it is content.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FAIL = "fail"
CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of one kind, up to one of the tags, each with the state that follows it."""

    kind: Literal["content", "reasoning", "nothing"]
    tags: Mapping[str, str] = field(default_factory=dict)
    may_return: bool = True  # a tag of content may turn out to be content, with what follows it


@dataclass(frozen=True, slots=True)
class Skip:
    """White space, then perhaps one of the tags; `begins`: texts that the state which follows reads itself."""

    tags: Mapping[str, str]
    otherwise: str
    begins: Mapping[str, str] = field(default_factory=dict)
    keeps_space: bool = False  # the state of `otherwise` reads the white space
    ends_call: bool = False  # all parameters of the call are there


@dataclass(frozen=True, slots=True)
class HeaderEnd:
    """The header ends with `tag` and its text before has `pattern`, whose groups `name` and `id` begin a call."""

    tag: str
    pattern: re.Pattern[str]
    next: str


@dataclass(frozen=True, slots=True)
class Header:
    """Text that says what follows: the first of `ends` that holds counts; none: no call."""

    ends: tuple[HeaderEnd, ...]


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """A JSON object: the arguments of the call that a header began."""

    next: str


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A JSON object of a name and arguments, in any order; `is_known`: no call unless the request has such a tool."""

    next: str
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls as Python writes them, with keyword arguments that are literals, up to `end`; of known tools alone."""

    next: str
    end: str


@dataclass(frozen=True, slots=True)
class Key:
    """A parameter's name, up to `end`."""

    end: str
    next: str


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value as plain text, up to `end`; a line break at either edge is none of it if `trims`."""

    end: str
    next: str
    trims: bool = False


State = Text | Skip | Header | JsonArguments | JsonCall | PythonCalls | Key | Value


@dataclass(frozen=True, slots=True)
class Format:
    """How outputs of a model are written: states by name, and the one that begins."""

    states: Mapping[str, State]
    start: str = CONTENT
