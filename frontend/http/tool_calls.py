"""Tool calls in generated text, written as <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Text before, between and after calls is content. A call is given out when it is complete, so that nobody acts on half
of one; what looks like a call and is none stays content.
"""

from dataclasses import dataclass

import msgspec

_BEGIN, _END = "<tool_call>", "</tool_call>"
_PREFIXES = tuple(_BEGIN[:length] for length in range(len(_BEGIN) - 1, 0, -1))


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
        self._held = ""  # not yet decided: the inside of a call, a piece of its tag, or white space around it
        self._after_call = False  # white space between a call and what follows is nobody's

    def push(self, text: str, final: bool = False) -> tuple[str, list[ParsedCall]]:
        """(content, complete calls) that the text adds; `final` with the last piece."""
        self._append(text)
        content: list[str] = []
        calls: list[ParsedCall] = []
        while (start := self._held.find(_BEGIN)) >= 0:
            end = self._held.find(_END, start)
            if end < 0 and not final:
                break
            inside = self._held[start + len(_BEGIN) : end if end >= 0 else None]
            call = _parse(inside)
            after = self._held[end + len(_END) :] if end >= 0 else ""
            if call is None:
                content.append(self._held[: len(self._held) - len(after)])
            else:
                content.append(self._held[:start].rstrip())  # the line break before a call belongs to the call
                calls.append(call)
                self._after_call = True
            self._held = ""
            self._append(after)
        self.num_calls += len(calls)
        content.append(self._release(final))
        return "".join(content), calls

    def _append(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        self._held += text

    def _release(self, final: bool) -> str:
        """The part of the held text that is content whatever comes next."""
        text = self._held
        if final:
            keep = len(text)
        elif (start := text.find(_BEGIN)) >= 0:
            keep = start
        else:
            keep = len(text) - next((len(prefix) for prefix in _PREFIXES if text.endswith(prefix)), 0)
        if not final:
            keep = len(text[:keep].rstrip())
        self._held = text[keep:]
        return text[:keep]


def _parse(inside: str) -> ParsedCall | None:
    try:
        call = _decode_call(inside.strip())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return ParsedCall(call.name, bytes(call.arguments).decode())
