"""Reads JSON in generated text incrementally: the end of a value, and the name and arguments of a call.

The JSON determines where a call ends, because its strings may contain the tags of the format. A control character
within a string, which models write although JSON forbids it, becomes an escape.
"""

import json
import re

import msgspec

from .collector import Collector
from .states import FAIL, JsonArguments, JsonCall

# The characters that matter outside and inside a string; a control character must be escaped in one.
_OUTSIDE, _INSIDE = re.compile(r'[{}\[\]"]'), re.compile(r'["\\\x00-\x1f]')
_SCALAR_END = re.compile(r"[,}\]\s]")
_SPACE = " \t\n\r"
MAX_NAME_CHARS = 256
MAX_HELD_CHARS = 1 << 16  # of a call before its name is certain
_decode_text = msgspec.json.Decoder(str).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonValue:
    """One value, beginning with the first character read."""

    def __init__(self) -> None:
        self._begun = self._is_scalar = self._in_string = self._escaped = False
        self._depth = 0

    def read(self, text: str, at: int) -> tuple[str, int, bool]:
        """(the value's text from `at` on, where it stops, whether the value ends there)."""
        if not self._begun and at < len(text):
            self._begun, self._is_scalar = True, text[at] not in '{["'
        if self._is_scalar:
            found = _SCALAR_END.search(text, at)
            end = len(text) if found is None else found.start()
            return text[at:end], end, found is not None
        pieces: list[str] = []
        while at < len(text):
            at = self._read_sign(text, at, pieces)
            if not self._in_string and not self._depth:
                return "".join(pieces), at, True
        return "".join(pieces), at, False

    def _read_sign(self, text: str, at: int, pieces: list[str]) -> int:
        if self._escaped:
            self._escaped = False
            pieces.append(text[at] if text[at] >= " " else json.dumps(text[at])[2:-1])
            return at + 1
        found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
        if found is None:
            pieces.append(text[at:])
            return len(text)
        pieces.append(text[at : found.start()])
        sign = found[0]
        if not self._in_string:
            self._in_string = sign == '"'
            self._depth += (sign in "{[") - (sign in "}]")
        elif sign == '"':
            self._in_string = False
        elif sign == "\\":
            self._escaped = True
        else:
            sign = json.dumps(sign)[1:-1]
        pieces.append(sign)
        return found.end()


class JsonArgumentsReader:
    """Reads the object with a call's arguments; any other value counts as no arguments."""

    def __init__(self, state: JsonArguments, collector: Collector):
        self._state, self._collector = state, collector
        self._value: JsonValue | None = None

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        if self._value is None:
            at = behind_space(text, at)
            if at == len(text):
                return at, None
            if text[at] != "{":
                self._collector.end_call()
                return at, self._state.next
            self._value = JsonValue()
        piece, at, ended = self._value.read(text, at)
        self._collector.arguments(piece)
        if not ended:
            return at, None
        self._collector.end_call()
        return at, self._state.next


class JsonCallReader:
    """Reads {"name": …, "arguments": …} with members in any order; other models write `parameters` and `tool_name`."""

    def __init__(self, state: JsonCall, collector: Collector):
        self._state, self._collector = state, collector
        self._due = "{"  # what comes next: "{", a key, ":", a value or ","
        self._value: JsonValue | None = None
        self._key, self._pieces = "", list[str]()  # pieces of the current key or value
        self._name = self._id = ""
        self._arguments: str | None = None  # arguments that came before the name
        self._num_held = 0
        self._is_committed = self._streams = self._failed = False

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        while at < len(text):
            if self._value is not None:
                piece, at, ended = self._value.read(text, at)
                self._take(piece, ended)
                if self._failed:
                    return at, FAIL
            elif text[at] in _SPACE:
                at += 1
            elif self._due == "value":
                self._begin_value(text[at])
                if self._failed:
                    return at, FAIL
            elif text[at] == "}" and self._due in ("key", ","):
                return at + 1, self._end()
            elif text[at] == '"' and self._due == "key":
                self._value = JsonValue()
            elif text[at] == self._due:
                at, self._due = at + 1, "value" if self._due == ":" else "key"
            else:
                return at, self._state.next if self._is_committed else FAIL
        return at, None

    def _begin_value(self, first: str) -> None:
        self._value = JsonValue()
        if self._key not in ("arguments", "parameters") or self._is_committed:
            return
        self._failed = first not in '{"n'  # an object, a string with one, or null
        if self._name and first == "{":
            self._commit()
            self._streams = True

    def _take(self, piece: str, ended: bool) -> None:
        if self._streams:
            self._collector.arguments(piece)
        elif not self._is_committed:
            self._pieces.append(piece)
            self._num_held += len(piece)
            self._failed = self._num_held > MAX_HELD_CHARS
        if not ended or self._failed:
            return
        self._value, value, self._pieces = None, "".join(self._pieces), []
        if self._due == "key":
            self._key, self._due = _text_of(value) or "", ":"
            return
        self._due = ","
        if self._streams:
            self._streams = False
            self._collector.end_call()
        elif not self._is_committed:
            self._keep(value)

    def _keep(self, value: str) -> None:
        match self._key:
            case "name" | "tool_name":
                self._name = _text_of(value) or ""
                unknown = self._state.is_known and self._name not in self._collector.tools
                self._failed = unknown or not self._name.isprintable() or not 0 < len(self._name) <= MAX_NAME_CHARS
            case "id":
                self._id = _text_of(value) or ""
            case "arguments" | "parameters":
                self._arguments = _object_of(value)
                self._failed = self._arguments is None
        if self._name and self._arguments is not None and not self._failed:
            self._commit()
            self._collector.arguments(self._arguments)
            self._collector.end_call()

    def _commit(self) -> None:
        self._is_committed = True
        self._collector.start_call(self._name, self._id)

    def _end(self) -> str:
        if not self._name:
            return FAIL
        if not self._is_committed:
            self._commit()
            self._collector.end_call()
        return self._state.next


def behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _text_of(value: str) -> str | None:
    try:
        return _decode_text(value)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _object_of(value: str) -> str | None:
    """The JSON of an object, plain or within a string; "{}" for null or an empty string; None for anything else."""
    text = value
    if text.startswith('"'):
        text = (_text_of(value) or "").strip()
    if text in ("", "null"):
        return "{}"
    try:
        _decode_object(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return text
