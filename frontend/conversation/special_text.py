"""Distinguishes special tokens spelled by the text of a request from those written by the chat template.

A template joins both into one text. So each string of a request that spells a special token, or could complete one
begun by the template or another string, gets a mark within the spelling: a character that no string of the request has.
A special token spelled without a mark in the rendered text comes from the template.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from .conversation import TemplateInput

# Letters of a rare script without case, which templates do not trim, escape or change.
MARKS = range(0x17000, 0x187F8)
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Span:
    """A special token's spelling at `start` of a text."""

    start: int
    spelling: str


class SpecialSpellings:
    """The spellings of one tokenizer's special tokens."""

    def __init__(self, spellings: Iterable[str]):
        self._all = frozenset(filter(None, spellings))
        self._longest = max(map(len, self._all), default=0)
        self._pattern = re.compile(_any_of(self._all) if self._all else "(?!)")
        self._place = re.compile(f"(?={self._pattern.pattern})")  # also within one another
        self._joined = "\0".join(sorted(self._all))
        self._heads = {spelling[:size] for spelling in self._all for size in range(1, len(spelling))}
        self._tails = {spelling[size:] for spelling in self._all for size in range(1, len(spelling))}
        self._firsts = {spelling[0] for spelling in self._all}
        self._lasts = {spelling[-1] for spelling in self._all}
        self._signs = {*_WORDS.sub("", self._joined)} - {"\0"}

    def find(self, text: str) -> Iterator[Span]:
        """Where `text` spells special tokens: the leftmost longest, as tokenizers find them."""
        for match in self._pattern.finditer(text):
            yield Span(match.start(), match[0])

    def spells(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def needs_mark(self, text: str) -> bool:
        return self.spells(text) or any(self._edges(text.strip()))

    def marked(self, text: str, mark: str) -> str:
        """`text` with marks, so that it spells no special token and no part of one at an edge. White space stays
        outermost, as templates trim texts."""
        core = text.strip()
        before, after = self._edges(core)
        at = text.find(core)
        head, tail = text[:at], text[at + len(core) :]
        pieces, end = [], 0
        for match in self._place.finditer(core):
            pieces += [core[end : match.start() + 1], mark]
            end = match.start() + 1
        inner = "".join([*pieces, core[end:]])
        return f"{head}{mark if before else ''}{inner}{mark if after else ''}{tail}"

    def _edges(self, core: str) -> tuple[bool, bool]:
        """Whether text (before, after) could complete a special token with its edge, or with all of it."""
        if not core:
            return False, False
        if len(core) < self._longest and not self._signs.isdisjoint(core) and core in self._joined:
            return True, True
        first, last = core[: self._longest], core[-self._longest :]
        before = any(first[: i + 1] in self._tails for i, char in enumerate(first) if char in self._lasts)
        after = any(last[i:] in self._heads for i, char in enumerate(last) if char in self._firsts)
        return before, after

    def mark_input(self, given: TemplateInput) -> tuple[TemplateInput, str]:
        """(the template's input with marks, the mark); "" when no mark is needed.

        Raises InvalidRequest when no character is left for a mark.
        """
        if not any(self.needs_mark(text) for text in _strings_of(given)):
            return given, ""
        used = set[str]().union(*_strings_of(given))
        mark = next((char for char in map(chr, MARKS) if char not in used), "")
        if not mark:
            raise InvalidRequest("messages spell a special token and use every Tangut character", "messages")
        messages = [
            {name: value if name == "role" else self._mark(value, mark) for name, value in message.items()}
            for message in given.messages
        ]
        tools, kwargs = self._mark(given.tools, mark), self._mark(given.kwargs, mark)
        return msgspec.structs.replace(given, messages=messages, tools=tools, kwargs=kwargs), mark

    def _mark(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self.marked(value, mark)
        if isinstance(value, list):
            return [self._mark(item, mark) for item in value]
        if isinstance(value, dict):
            return {self._mark(name, mark): self._mark(item, mark) for name, item in value.items()}
        return value

    def of_template(self, text: str, mark: str) -> list[Span]:
        """The template's own special tokens in the text that it rendered, by their places in it without marks."""
        spans, end, num_marks = [], 0, 0
        for span in self.find(text):
            num_marks += text.count(mark, end, span.start) if mark else 0
            spans.append(Span(span.start - num_marks, span.spelling))
            end = span.start
        return spans


def _any_of(texts: Collection[str]) -> str:
    """A pattern for the longest of these texts at a place. Common prefixes are shared: there are thousands of texts."""
    branches: dict[str, list[str]] = {}
    for text in texts:
        if text:
            branches.setdefault(text[0], []).append(text[1:])
    patterns = [re.escape(first) + _any_of(rest) for first, rest in sorted(branches.items())]
    return f"(?:{'|'.join(patterns)}){'?' if '' in texts else ''}" if patterns else ""


def _strings_of(given: TemplateInput) -> Iterator[str]:
    """Every string of a request except roles, which are one of a few words."""
    for message in given.messages:
        yield from _strings([value for name, value in message.items() if name != "role"])
    yield from _strings(given.tools)
    yield from _strings(given.kwargs)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)
