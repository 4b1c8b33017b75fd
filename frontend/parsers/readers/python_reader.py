"""Reads calls in Python's syntax: name(key="value", other=[1, 2])."""

import re

from .collector import Collector
from .json_readers import MAX_NAME_CHARS, behind_space
from .parameter_readers import value_json
from .states import FAIL, PythonCalls

_NAME = re.compile(rf"[^\s=,()\[\]{{}}<>\"']{{1,{MAX_NAME_CHARS}}}")
# A schema may give a property any name, such as user-id. A value without quotes is no name: no "=" follows it.
_KEY = re.compile(rf"[^=,()\[\]{{}}\"']{{1,{MAX_NAME_CHARS}}}")
_OUTSIDE, _INSIDE = re.compile(r"[\[\](){},\"']"), {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


class PythonCallsReader:
    def __init__(self, state: PythonCalls, collector: Collector):
        self._state, self._collector = state, collector
        self._in_call = self._is_committed = False
        self._value: _Literal | None = None

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        while True:
            if self._value is not None:
                at, ended = self._value.read(text, at)
                if not ended:
                    return at, None
                self._collector.value(value_json(self._value.text))
                self._value = None
            at = self._behind_separators(text, at)
            if at == len(text):
                return at, None
            end, target = self._read_argument(text, at) if self._in_call else self._read_name(text, at)
            if target is not None or (end == at and self._value is None):
                return end, target
            at = end

    def _behind_separators(self, text: str, at: int) -> int:
        while (after := behind_space(text, at)) < len(text) and text[after] == ",":
            at = after + 1
        return after

    # Both return (where reading stops, the next state if this one is done); they stop early if more text is needed.

    def _read_name(self, text: str, at: int) -> tuple[int, str | None]:
        end = self._state.end
        if text.startswith(end, at):
            return at + len(end), self._state.next if self._is_committed else FAIL
        if end.startswith(text[at:]):
            return at, None
        name = _NAME.match(text, at)
        if name is not None and name.end() == len(text):
            return at, None
        if name is None or text[name.end()] != "(" or name[0] not in self._collector.tools:
            return at, self._state.next if self._is_committed else FAIL
        self._is_committed = self._in_call = True
        self._collector.start_call(name[0])
        return name.end() + 1, None

    def _read_argument(self, text: str, at: int) -> tuple[int, str | None]:
        if text[at] == ")":
            self._in_call = False
            self._collector.end_call()
            return at + 1, None
        key = _KEY.match(text, at)
        after = at if key is None else key.end()
        if after == len(text):
            return at, None  # a name, or a value such as None
        named = key is not None and text[after] == "="
        name = key[0].rstrip() if named and key is not None else self._collector.next_parameter()
        self._collector.start_parameter(name)
        self._value = _Literal()
        return (after + 1 if named else at), None


class _Literal:
    """Reads a literal up to the comma or bracket that ends it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._depth = 0
        self._quote = ""
        self._escaped = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def read(self, text: str, at: int) -> tuple[int, bool]:
        start = at
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_INSIDE[self._quote] if self._quote else _OUTSIDE).search(text, at)
            if found is None:
                at = len(text)
            elif not self._quote and not self._depth and found[0] in ",)":
                self._pieces.append(text[start : found.start()])
                return found.start(), True
            else:
                at = found.end()
                self._take(found[0])
        self._pieces.append(text[start:])
        return len(text), False

    def _take(self, sign: str) -> None:
        if self._quote:
            self._escaped = sign == "\\"
            self._quote = "" if sign == self._quote else self._quote
        elif sign in "\"'":
            self._quote = sign
        else:
            self._depth += (sign in "[({") - (sign in "])}")
