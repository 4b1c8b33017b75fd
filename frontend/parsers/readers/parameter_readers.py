"""Reads parameters that a format writes one by one as plain text, and converts them to JSON."""

import ast
import json

import msgspec

from ...structured_outputs.json_schema.texts import takes_text
from .collector import Collector
from .json_readers import MAX_NAME_CHARS
from .states import FAIL, Key, Value
from .tags import tags_of


def value_json(text: str) -> str:
    """The text itself if it is JSON; a Python literal converted to JSON; otherwise the text as a JSON string.

    Sets, bytes and infinity are not values of JSON. A set has no order either, which would differ between processes.
    """
    text = text.strip()
    try:
        msgspec.json.decode(text)
        return text
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        found = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return found.encode().decode()  # fails for half a surrogate pair
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return json.dumps(text, ensure_ascii=False)


class KeyReader:
    def __init__(self, state: Key, collector: Collector):
        self._state, self._collector = state, collector
        self._tags = tags_of(state.end, *state.other_ends)
        self._pieces: list[str] = []

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        end, tag = self._tags.find(text, at, final)
        self._pieces.append(text[at:end])
        if (excess := sum(map(len, self._pieces)) - MAX_NAME_CHARS) > 0:
            return end - excess, FAIL  # where it fails must not depend on the pieces
        if not tag:
            return end, None
        self._collector.start_parameter("".join(self._pieces).strip())
        return end + len(tag), self._state.other_ends.get(tag, self._state.next)


class ValueReader:
    """Passes on text in pieces, and any other value when it is complete."""

    def __init__(self, state: Value, collector: Collector):
        self._state, self._collector = state, collector
        self._tags = tags_of(state.end)
        is_declared = state.kind == "declared"
        self._is_text = takes_text(collector.tool_schema, collector.schema) if is_declared else state.kind == "text"
        self._begun = False
        self._held = ""  # a line break that may be the last character
        self._pieces: list[str] = []

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        end, tag = self._tags.find(text, at, final)
        self._take(text[at:end])
        if not tag:
            return end, None
        if self._is_text:
            self._open()
            self._collector.value(_inner(self._held if not self._state.trims else "") + '"')
        else:
            self._collector.value(value_json("".join(self._pieces)))
        return end + len(tag), self._state.next

    def _take(self, piece: str) -> None:
        if not self._is_text:
            self._pieces.append(piece)
        elif piece:
            if not self._begun and self._state.trims:
                piece = piece.removeprefix("\n")
            self._open()
            piece = self._held + piece
            self._held = "\n" if piece.endswith("\n") else ""
            self._collector.arguments(_inner(piece[: len(piece) - len(self._held)]))

    def _open(self) -> None:
        if not self._begun:
            self._begun = True
            self._collector.arguments('"')


def _inner(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
