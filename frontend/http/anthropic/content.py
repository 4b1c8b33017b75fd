"""Events of generated text to content blocks, for an answer that is whole and for a stream alike.

Blocks follow one another in the order of the events: each ends where an event of another kind, or another call, begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ...parsers.events import Arguments, CallStart, Content, Event, Reasoning
from .answers import Content as ContentBlock
from .answers import StopReason, TextContent, ThinkingContent, ToolUseContent

# Arguments that are no object are a text under this key, as Anthropic has clients send them.
INVALID_JSON = "INVALID_JSON"
_NO_INPUT = msgspec.Raw(b"{}")
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Begin:
    """A block begins, without content."""

    block: ContentBlock


@dataclass(frozen=True, slots=True)
class Add:
    """Text of the block that began last; of a call, JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The block that began last ends."""

    block: ContentBlock


Change = Begin | Add | End


class Blocks:
    """What events change in an answer's content."""

    def __init__(self, *, shows_thinking: bool):
        """Else thinking is told to have been, without its text."""
        self._shows_thinking = shows_thinking
        self._open: ContentBlock | None = None
        self.num_calls = 0

    def push(self, events: Sequence[Event]) -> Iterator[Change]:
        for event in events:
            match event:
                case Content(text=text):
                    yield from self._added(TextContent, text)
                case Reasoning(text=text):
                    yield from self._added(ThinkingContent, text if self._shows_thinking else "")
                case CallStart(name=name, id=call_id):
                    yield from self._begun(ToolUseContent(id=call_id, name=name, input=_NO_INPUT))
                    self.num_calls += 1
                case Arguments(text=text):
                    if text:
                        yield Add(text)
                case _:
                    assert_never(event)

    def end(self) -> Iterator[Change]:
        """Nothing comes any more."""
        if self._open is not None:
            yield End(self._open)
            self._open = None

    def _added(self, kind: type[TextContent] | type[ThinkingContent], text: str) -> Iterator[Change]:
        if not isinstance(self._open, kind):
            yield from self._begun(TextContent(text="") if kind is TextContent else ThinkingContent(thinking=""))
        if text:
            yield Add(text)

    def _begun(self, block: ContentBlock) -> Iterator[Change]:
        yield from self.end()
        self._open = block
        yield Begin(block)


class WholeContent:
    """The content of an answer that is sent at its end."""

    def __init__(self) -> None:
        self.blocks: list[ContentBlock] = []
        self._texts: list[str] = []  # of the last block; joined once: a text that grows is copied each time

    def apply(self, change: Change) -> None:
        match change:
            case Begin(block=block):
                self.blocks.append(block)
            case Add(text=text):
                self._texts.append(text)
            case End(block=block):
                _fill(block, "".join(self._texts))
                self._texts.clear()
            case _:
                assert_never(change)


def _fill(block: ContentBlock, text: str) -> None:
    match block:
        case TextContent():
            block.text = text
        case ThinkingContent():
            block.thinking = text
        case ToolUseContent():
            block.input = _input(text)
        case _:
            assert_never(block)


def _input(written: str) -> msgspec.Raw:
    """An answer that its length cut off within a call has arguments that are no object: their text is kept."""
    if not written:
        return _NO_INPUT
    try:
        _decode_object(written)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode({INVALID_JSON: written}))
    return msgspec.Raw(written)


def stop_reason(
    finish_reason: str | None, stop: str | int | None, *, has_calls: bool, context_is_full: bool
) -> tuple[StopReason, str | None]:
    """(reason, stop sequence) of a finish in OpenAI's words; `stop`: the stop string or token that ended the text."""
    if finish_reason == "length":
        return ("model_context_window_exceeded" if context_is_full else "max_tokens"), None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if has_calls else "end_turn"), None
