"""Tool calls in generated text, written as <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Text before, between and after calls is content. A call is given out when it is complete, so that nobody acts on half
of one; what looks like a call and is none stays content.
"""

from dataclasses import dataclass

import msgspec

_BEGIN, _END = "<tool_call>", "</tool_call>"
_PREFIXES = {tag: tuple(tag[:length] for length in range(len(tag) - 1, 0, -1)) for tag in (_BEGIN, _END)}


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_decode_call = msgspec.json.Decoder(_Call).decode


@dataclass(slots=True, frozen=True)
class ParsedCall:
    name: str
    arguments: str  # JSON, as the model wrote it


class ToolCallParser:
    """One sequence's text in; content and calls out. Any division into pieces gives the same.

    >>> parser = ToolCallParser()
    >>> parser.push('Look: <tool_'), parser.push('call>{"name": "f", "arguments": {}}</tool_call>')
    (('Look:', []), ('', [ParsedCall(name='f', arguments='{}')]))
    """

    def __init__(self) -> None:
        self.num_calls = 0
        # Each character is looked at once and joined once, whatever a model writes.
        self._inside: list[str] | None = None  # of a call that has begun
        self._space: list[str] = []  # before a call, to which it belongs if it is one
        self._tail = ""  # perhaps the beginning of a tag
        self._after_call = False  # white space between a call and what follows is nobody's

    def push(self, text: str, final: bool = False) -> tuple[str, list[ParsedCall]]:
        """(content, complete calls) that the text adds; `final` with the last piece."""
        text = self._tail + text
        content: list[str] = []
        calls: list[ParsedCall] = []
        start = 0
        while (found := text.find(tag := self._next_tag(), start)) >= 0:
            self._take(text[start:found], content)
            start = found + len(tag)
            if self._inside is None:
                self._inside, self._after_call = [], False
            else:
                self._end_call(content, calls, _END)
        end = len(text)
        if not final:
            end -= next((len(prefix) for prefix in _PREFIXES[tag] if text.endswith(prefix, start)), 0)
        self._take(text[start:end], content)
        self._tail = text[end:]
        if final and self._inside is not None:
            self._end_call(content, calls, "")
        elif final:
            content += self._space
        self.num_calls += len(calls)
        return "".join(content), calls

    def _next_tag(self) -> str:
        return _BEGIN if self._inside is None else _END

    def _take(self, text: str, content: list[str]) -> None:
        """Text without a tag."""
        if self._inside is not None:
            self._inside.append(text)
            return
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        shown = text.rstrip()
        if shown:
            content += [*self._space, shown]
            self._space = []
        self._space.append(text[len(shown) :])

    def _end_call(self, content: list[str], calls: list[ParsedCall], tag: str) -> None:
        inside = "".join(self._inside or ())
        call = _parse(inside)
        if call is None:
            content += [*self._space, _BEGIN, inside, tag]
        else:
            calls.append(call)
            self._after_call = True
        self._inside, self._space = None, []


def _parse(inside: str) -> ParsedCall | None:
    try:
        call = _decode_call(inside.strip())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return ParsedCall(call.name, bytes(call.arguments).decode())
