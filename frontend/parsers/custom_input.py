"""Extracts the text of a custom tool's call from the JSON arguments of the function that replaces the tool.

The model writes {"input": "…"}, and the tool gets the text. Anything else that the model writes, which is possible
without a grammar, is passed on unchanged.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .events import Arguments, CallStart, Event

FIELD = "input"
_BEGIN = '{"input":"'
_SPACE = " \t\r\n"
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_PLAIN = re.compile(r'[^"\\]+')
_HIGH, _LOW, _PLANE = range(0xD800, 0xDC00), range(0xDC00, 0xE000), 0x10000
_LONE = "\ufffd"


class CustomCalls:
    """`names`: the functions that replace custom tools."""

    def __init__(self, names: frozenset[str]):
        self._names = names
        self._open: tuple[int, CustomInput] | None = None

    def push(self, events: Sequence[Event], final: bool) -> list[Event]:
        """The events, with calls of custom tools translated."""
        if not self._names:
            return list(events)
        found = [shown for event in events for shown in self._shown(event)]
        return [*found, *self._end()] if final else found

    def _shown(self, event: Event) -> Iterator[Event]:
        if isinstance(event, Arguments) and self._open is not None:
            if text := self._open[1].push(event.text):
                yield Arguments(event.index, text, is_custom=True)
            return
        yield from self._end()
        if isinstance(event, CallStart) and event.name in self._names:
            self._open = event.index, CustomInput()
            event = replace(event, is_custom=True)
        yield event

    def _end(self) -> Iterator[Event]:
        if self._open is not None and (text := self._open[1].end()):
            yield Arguments(self._open[0], text, is_custom=True)
        self._open = None


class CustomInput:
    """Turns pieces of one call's arguments into pieces of its input. The joined input does not depend on the pieces."""

    def __init__(self) -> None:
        self._head = ""  # the characters before the text
        self._matched = 0  # characters of _BEGIN
        self._escape = ""  # an incomplete escape
        self._high = 0  # the high surrogate of a character whose low surrogate is still missing
        self._is_raw = self._has_ended = False

    def push(self, text: str) -> str:
        if not self._is_raw and self._matched < len(_BEGIN):
            text = self._after_head(text)
        return text if self._is_raw else self._decoded(text)

    def end(self) -> str:
        """The text held back so far."""
        if not self._is_raw and self._matched < len(_BEGIN):
            return self._head
        return self._lone() if not self._has_ended else ""

    def _after_head(self, text: str) -> str:
        for i, char in enumerate(text):
            self._head += char
            if char == _BEGIN[self._matched]:
                self._matched += 1
                if self._matched == len(_BEGIN):
                    return text[i + 1 :]
            elif char not in _SPACE or 2 <= self._matched < 8:  # no white space is allowed within the name
                self._is_raw = True
                return self._head + text[i + 1 :]
        return ""

    def _decoded(self, text: str) -> str:
        found, at = "", 0
        while at < len(text) and not self._has_ended:
            if self._escape:
                self._escape += text[at]
                at += 1
                found += self._unescaped()
            elif (plain := _PLAIN.match(text, at)) is not None:
                found += self._lone() + plain[0]
                at = plain.end()
            elif text[at] == "\\":
                self._escape = "\\"
                at += 1
            else:
                found += self._lone()
                self._has_ended = True
        return found

    def _unescaped(self) -> str:
        """The character of a complete escape."""
        if self._escape[1] != "u":
            char, self._escape = self._escape[1], ""
            return self._lone() + _ESCAPES.get(char, "\\" + char)
        if len(self._escape) < len("\\uXXXX"):
            return ""
        digits, self._escape = self._escape[2:], ""
        try:
            code = int(digits, 16)
        except ValueError:
            return self._lone() + "\\u" + digits
        if code in _LOW and self._high:
            code, self._high = _PLANE + ((self._high - _HIGH.start) << 10) + code - _LOW.start, 0
            return chr(code)
        before = self._lone()
        if code in _HIGH:
            self._high = code
            return before
        return before + (_LONE if code in _LOW else chr(code))

    def _lone(self) -> str:
        """The replacement for a high surrogate without a low surrogate."""
        if not self._high:
            return ""
        self._high = 0
        return _LONE
