"""Tool calls in generated text, written as <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Text before, between and after calls is content. A call is output when its JSON is complete, so that nothing acts on
half of one; text that only looks like a call stays content. The JSON determines where a call ends: its strings may
hold the end tag, and models omit it.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ..conversation.conversation import check_depth

BROKEN = -1
BEGIN, END = "<tool_call>", "</tool_call>"
_PREFIXES = {tag: tuple(tag[:length] for length in range(len(tag) - 1, 0, -1)) for tag in (BEGIN, END)}
_TAG = re.compile("</?tool_call>")
_SPACE = re.compile(r"\s*")
# What matters outside and inside of a JSON string; a control character cannot be in one.
_OUTSIDE, _INSIDE = re.compile(r'[{}\[\]"]'), re.compile(r'["\\\x00-\x1f]')


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")  # as Llama's models write it


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(slots=True, frozen=True)
class ParsedCall:
    name: str
    arguments: str  # a JSON object, as the model wrote it


class _ObjectEnd:
    """Finds where a JSON object ends that begins with the first character pushed."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str, at: int) -> int | None:
        """The index behind the end, looked for from `at`; None when it is not there yet, BROKEN when there is none."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                return None
            at, sign = match.end(), match[0]
            if self._in_string:
                if sign == "\\":
                    self._escaped = True
                elif sign == '"':
                    self._in_string = False
                else:
                    return BROKEN
            elif sign == '"':
                self._in_string = True
            else:
                self._depth += 1 if sign in "{[" else -1
                if not self._depth:
                    return at
        return None


class _Mode(Enum):
    CONTENT = auto()
    BEGUN = auto()  # a tag, and perhaps white space
    OBJECT = auto()
    TEXT = auto()  # of a call that is no object, to the next tag


class ToolCallParser:
    """One sequence's text in; content and calls out. Any division into pieces gives the same.

    >>> parser = ToolCallParser()
    >>> parser.push('Look: <tool_'), parser.push('call>{"name": "f", "arguments": {}}</tool_call>')
    (('Look:', []), ('', [ParsedCall(name='f', arguments='{}')]))
    """

    def __init__(self) -> None:
        self.num_calls = 0
        # Each character is looked at once or twice and joined once, whatever a model writes.
        self._mode = _Mode.CONTENT
        self._inside: list[str] = []  # of a call that has begun
        self._object = _ObjectEnd()
        self._by_text = False  # once an object never ended: from there on, only tags count
        self._space: list[str] = []  # before a call, to which it belongs if it is one
        self._tail = ""  # perhaps the beginning of a tag
        self._after_call = False  # white space that follows a call is no content
        self._end_tag_due = False  # nor is its end tag
        self._content: list[str] = []
        self._calls: list[ParsedCall] = []

    def push(self, text: str, final: bool = False) -> tuple[str, list[ParsedCall]]:
        """(content, complete calls) that the text adds; `final` with the last piece."""
        rest, self._tail = self._tail + text, ""
        self._read(rest, final)
        if final and self._mode is _Mode.OBJECT:
            self._read(self._again_by_text(), final)
        if final and self._mode is not _Mode.CONTENT:
            self._end_text("")
        elif final:
            self._content += self._space
        content, calls = "".join(self._content), self._calls
        self._content, self._calls = [], []
        self.num_calls += len(calls)
        return content, calls

    def _read(self, text: str, final: bool) -> None:
        at = 0
        while at < len(text):
            match self._mode:
                case _Mode.CONTENT:
                    at = self._read_content(text, at, final)
                case _Mode.BEGUN:
                    at = self._read_begun(text, at)
                case _Mode.OBJECT:
                    if (at := self._read_object(text, at)) == BROKEN:  # once in a text at most
                        text, at = self._again_by_text(), 0
                case _Mode.TEXT:
                    at = self._read_text(text, at, final)

    # Each of these reads from `at`, and returns how far it has come.

    def _read_content(self, text: str, at: int, final: bool) -> int:
        if self._after_call:
            at = _behind_space(text, at)
            if self._end_tag_due and text.startswith(END, at):
                self._end_tag_due = False
                return at + len(END)
            if self._end_tag_due and len(text) - at < len(END) and END.startswith(text[at:]):
                self._tail = "" if final else text[at:]
                return len(text)
            if at == len(text):
                return at
            self._after_call = self._end_tag_due = False
        end = text.find(BEGIN, at)
        if begins := end >= 0:
            self._mode, self._inside = _Mode.BEGUN, []
        else:
            end = self._keep_tail(text, at, final, BEGIN)
        before = text[at:end]
        if shown := before.rstrip():
            self._content += [*self._space, shown]
            self._space = []
        self._space.append(before[len(shown) :])
        return end + len(BEGIN) if begins else len(text)

    def _read_begun(self, text: str, at: int) -> int:
        end = _behind_space(text, at)
        self._inside.append(text[at:end])
        if end < len(text):
            self._mode = _Mode.OBJECT if text[end] == "{" and not self._by_text else _Mode.TEXT
            self._object = _ObjectEnd()
        return end

    def _read_object(self, text: str, at: int) -> int:
        end = self._object.find(text, at)
        self._inside.append(text[at:] if end is None or end == BROKEN else text[at:end])
        if end is None or end == BROKEN:
            return len(text) if end is None else BROKEN
        self._mode = _Mode.TEXT  # unless it is a call
        if (call := _parse("".join(self._inside))) is not None:
            self._give(call)
            self._end_tag_due = True
        return end

    def _read_text(self, text: str, at: int, final: bool) -> int:
        tag = _TAG.search(text, at)
        end = self._keep_tail(text, at, final, BEGIN, END) if tag is None else tag.start()
        self._inside.append(text[at:end])
        if tag is None:
            return len(text)
        self._end_text(END if tag[0] == END else "")
        return tag.end() if tag[0] == END else end

    def _keep_tail(self, text: str, at: int, final: bool, *tags: str) -> int:
        """Where the end of `text` begins that may be the beginning of a tag."""
        ends = (prefix for tag in tags for prefix in _PREFIXES[tag] if text.endswith(prefix, at))
        self._tail = "" if final else max(ends, key=len, default="")
        return len(text) - len(self._tail)

    def _again_by_text(self) -> str:
        """An object that never ends, or has a line break within a text: what was read of it is read by tags."""
        self._by_text, self._mode = True, _Mode.TEXT
        inside, self._inside = "".join(self._inside), []
        return inside

    def _end_text(self, tag: str) -> None:
        inside = "".join(self._inside)
        if (call := _parse(inside)) is not None:
            self._give(call)
        else:
            self._content += [*self._space, BEGIN, inside, tag]
            self._space = []
        self._mode = _Mode.CONTENT

    def _give(self, call: ParsedCall) -> None:
        self._calls.append(call)
        self._mode, self._space, self._after_call = _Mode.CONTENT, [], True


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _parse(inside: str) -> ParsedCall | None:
    try:
        call = _decode_call(inside.strip())
        arguments = _object_text(call.arguments) or _object_text(call.parameters) or "{}"
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidRequest):
        return None
    return ParsedCall(call.name, arguments)


def _object_text(raw: msgspec.Raw) -> str:
    """The JSON of an object, plain or within a string; "" for null or none. Raises DecodeError for anything else."""
    text = bytes(raw).decode().strip()
    if text.startswith('"'):
        text = _decode_text(text).strip()
    if text in ("", "null"):
        return ""
    check_depth(_decode_object(text), "arguments")  # no deeper than a later request may contain
    return text
