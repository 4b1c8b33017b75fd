"""Turns events of generated text into content blocks, for whole answers and for streams.

Blocks follow one another in the order of the events: each ends where an event of another kind, or another call, begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ...conversation.conversation import INVALID_JSON
from ...parsers.events import Arguments, CallStart, Content, Event, Reasoning
from ..hidden_reasoning import encoded
from .answers import Content as ContentBlock
from .answers import StopReason, TextContent, ThinkingContent, ToolUseContent

_UNSIGNED = "unsigned"  # not "", because some clients send back as thinking only blocks with a signature
_NO_INPUT = msgspec.Raw(b"{}")
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(slots=True)
class Begin:
    """A block begins, without content."""

    block: ContentBlock


@dataclass(slots=True)
class Add:
    """Text of the current block; for a tool call, JSON."""

    text: str


@dataclass(slots=True)
class End:
    """The current block ends."""

    block: ContentBlock
    signature: str = ""  # of thinking


Change = Begin | Add | End


class Blocks:
    """Turns events into changes of an answer's content."""

    def __init__(self, *, shows_thinking: bool):
        """`shows_thinking` false: thinking blocks are sent without their text."""
        self._shows_thinking = shows_thinking
        self._hidden = list[str]()  # reasoning of the open block
        self._open: ContentBlock | None = None

    def push(self, events: Sequence[Event]) -> list[Change]:
        changes = list[Change]()
        for event in events:
            match event:
                case Content(text=text):
                    if not isinstance(self._open, TextContent):
                        self._begin(TextContent(text=""), changes)
                    changes.append(Add(text))
                case Arguments(text=text):
                    changes.append(Add(text))
                case Reasoning(text=text):
                    if not isinstance(self._open, ThinkingContent):
                        self._begin(ThinkingContent(thinking=""), changes)
                    if self._shows_thinking:
                        changes.append(Add(text))
                    else:
                        self._hidden.append(text)
                case CallStart(name=name, id=call_id):
                    self._begin(ToolUseContent(id=call_id, name=name, input=_NO_INPUT), changes)
                case _:
                    assert_never(event)
        return changes

    def end(self) -> list[Change]:
        """The changes at the end of the output."""
        changes = list[Change]()
        match self._open:
            case None:
                pass
            case ThinkingContent():
                changes.append(End(self._open, encoded("".join(self._hidden)) if self._hidden else _UNSIGNED))
                self._hidden.clear()
            case _:
                changes.append(End(self._open))
        self._open = None
        return changes

    def _begin(self, block: ContentBlock, changes: list[Change]) -> None:
        changes += [*self.end(), Begin(block)]
        self._open = block


class WholeContent:
    """The content of an answer that is not streamed."""

    def __init__(self) -> None:
        self.blocks: list[ContentBlock] = []
        self._texts: list[str] = []  # of the last block; joined once, because appending to a str copies it

    def apply(self, change: Change) -> None:
        match change:
            case Begin(block=block):
                self.blocks.append(block)
            case Add(text=text):
                self._texts.append(text)
            case End(block=block, signature=signature):
                _fill(block, "".join(self._texts), signature)
                self._texts.clear()
            case _:
                assert_never(change)


def _fill(block: ContentBlock, text: str, signature: str) -> None:
    match block:
        case TextContent():
            block.text = text
        case ThinkingContent():
            block.thinking, block.signature = text, signature
        case ToolUseContent():
            block.input = _input(text)
        case _:
            assert_never(block)


def _input(written: str) -> msgspec.Raw:
    """The arguments as a JSON object. If they were cut off, they are returned as text in an object."""
    if not written:
        return _NO_INPUT
    try:
        _decode_object(written)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode({INVALID_JSON: written}))
    return msgspec.Raw(written)


def stop_reason(
    finish_reason: str | None, stop: str | int | None, *, context_is_full: bool
) -> tuple[StopReason, str | None]:
    """(stop reason, stop sequence) for OpenAI's finish reason; `stop`: the stop string or token of the output."""
    if finish_reason == "length":
        return ("model_context_window_exceeded" if context_is_full else "max_tokens"), None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if finish_reason == "tool_calls" else "end_turn"), None
