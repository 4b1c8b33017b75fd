"""Reads arguments whose strings are between marks instead of in quotes: key:<|"|>text<|"|>,other:[1,true]}."""

import json
import re

from .collector import Collector
from .json_readers import JsonValue, behind_space
from .parameter_readers import value_json
from .states import MarkedArguments
from .tags import tags_of

MAX_BARE_CHARS = 256  # of a key or a value without marks
_BARE_END = {"key": re.compile(r"[:,{}\[\]]"), "value": re.compile(r"[,}\]]")}
_CLOSES = {"{": "}", "[": "]"}


class MarkedArgumentsReader:
    """Writes the arguments as JSON. Strings in quotes are read too: constrained outputs have them.

    Where the text turns out not to be arguments, they end.
    """

    def __init__(self, state: MarkedArguments, collector: Collector):
        self._state, self._collector = state, collector
        self._mark = tags_of(state.mark)
        self._open = ["{"]  # brackets; the header ends with the first
        self._due = "key"  # what comes next: "key", ":", "value" or ","
        self._has_members = False  # in the innermost bracket
        self._string: JsonValue | None = None  # in quotes
        self._is_marked = False  # within marks
        collector.arguments("{")

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        while self._open:
            if self._string is not None:
                piece, at, ended = self._string.read(text, at)
                self._collector.arguments(piece)
            elif self._is_marked:
                end, tag = self._mark.find(text, at, final)
                self._collector.arguments(json.dumps(text[at:end], ensure_ascii=False)[1:-1] + ('"' if tag else ""))
                at, ended = end + len(tag), bool(tag)
            else:
                at = behind_space(text, at)
                if at == len(text) or (not final and self._mark.may_begin(text, at)):
                    return at, None
                found = self._read_sign(text, at)
                if found is None:
                    self._complete()
                    return at, self._state.next
                if found < 0:
                    return at, None
                at = found
                continue
            if not ended:
                return at, None
            self._string, self._is_marked = None, False
            self._due = ":" if self._due == "key" else ","
        self._collector.end_call()
        return at, self._state.next

    def _read_sign(self, text: str, at: int) -> int | None:
        """Where reading continues; -1: more text is needed; None: no arguments follow."""
        sign = text[at]
        if sign == _CLOSES[self._open[-1]] and (self._due in ("key", ",") or self._open[-1] == "["):
            self._collector.arguments(sign)
            self._open.pop()
            self._due, self._has_members = ",", True
            return at + 1
        if self._due in (":", ","):
            if sign != self._due:
                return None
            if sign == ":":
                self._collector.arguments(": ")
            self._due = "value" if sign == ":" or self._open[-1] == "[" else "key"
            return at + 1
        if tag := self._mark.at(text, at):
            self._begin('"')
            self._is_marked = True
            return at + len(tag)
        if sign == '"':
            self._begin("")
            self._string = JsonValue()
            return at
        if sign in _CLOSES and self._due == "value":
            self._begin(sign)
            self._open.append(sign)
            self._due, self._has_members = "key" if sign == "{" else "value", False
            return at + 1
        return self._read_bare(text, at)

    def _complete(self) -> None:
        """Add what completes the arguments' JSON."""
        is_due = self._due == "value" and self._open[-1] == "{"
        missing = ": null" if self._due == ":" else "null" if is_due else ""
        self._collector.arguments(missing + "".join(_CLOSES[each] for each in reversed(self._open)))
        self._collector.end_call()

    def _read_bare(self, text: str, at: int) -> int | None:
        found = _BARE_END[self._due].search(text, at)
        end = len(text) if found is None else found.start()
        if end - at > MAX_BARE_CHARS or (found is not None and not text[at:end].strip()):
            return None
        if found is None:
            return -1
        bare, is_key = text[at:end].strip(), self._due == "key"
        self._begin(json.dumps(bare, ensure_ascii=False) if is_key else value_json(bare))
        self._due = ":" if is_key else ","
        return end

    def _begin(self, text: str) -> None:
        """Begin a key or a value, with the comma that separates it from the last member."""
        is_member = self._due == "key" or self._open[-1] == "["
        self._collector.arguments((", " if is_member and self._has_members else "") + text)
        self._has_members = self._has_members or is_member
