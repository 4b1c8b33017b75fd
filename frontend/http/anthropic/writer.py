"""Turns generated text into one message or into the events of a stream."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import msgspec
from msgspec import UNSET

from paged_serve.protocol.errors import RequestAborted

from ...parsers.events import Event
from ..exchange.sse import AnswerHead
from .answers import MessageAnswer, MessageUsage, StopReason
from .content import Add, Begin, Blocks, Change, End, WholeContent, stop_reason

_encode = msgspec.json.Encoder().encode
_STOPPED = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTAS = {"text": (b"text_delta", b"text"), "thinking": (b"thinking_delta", b"thinking")}
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
_JSON_DELTA = (b"input_json_delta", b"partial_json")


@dataclass(slots=True)
class Output:
    """The events of one piece of generated text."""

    events: Sequence[Event]
    finish_reason: str | None  # OpenAI's name; set in the last output
    stop: str | int | None  # the stop string or token that ended the text


class Source(Protocol):
    """A generation with one choice."""

    @property
    def context_is_full(self) -> bool:
        """Whether the output limit is the end of the context."""

    def batches(self, answer_id: str) -> AsyncGenerator[list[Output], None]:
        """`answer_id`: the ids of calls are derived from it."""

    def usage(self) -> MessageUsage: ...


class MessageWriter:
    """Writes one answer; call either `answer` or `frames`, once."""

    def __init__(self, source: Source, *, shows_thinking: bool):
        self._source = source
        self._blocks = Blocks(shows_thinking=shows_thinking)
        self._reason: StopReason | None = None
        self._stop_sequence: str | None = None

    async def answer(self, head: AnswerHead) -> MessageAnswer:
        """The whole answer."""
        content = WholeContent()
        async for batch in self._source.batches(head.answer_id):
            for output in batch:
                for change in self._changes(output):
                    content.apply(change)
        message = self._begun(head)
        message.content = content.blocks
        message.stop_reason, message.stop_sequence = self._reason, self._stop_sequence
        return message

    async def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, in lists of those available at a time."""
        frames, has_begun = _BlockFrames(), False
        async for batch in self._source.batches(head.answer_id):
            events = list[bytes]()
            if not has_begun:  # the prompt's usage is known from here on
                has_begun = True
                message = self._begun(head)
                message.usage.output_tokens = 0
                events.append(_frame(b"message_start", b'"message":' + _encode(message)))
            for output in batch:
                for change in self._changes(output):
                    events += frames.of(change)
            if events:
                yield events
        delta = {"stop_reason": self._reason, "stop_sequence": self._stop_sequence}
        shared = b'"delta":' + _encode(delta) + b',"usage":' + _encode(self._source.usage())
        yield [_frame(b"message_delta", shared), _STOPPED]

    def _changes(self, output: Output) -> list[Change]:
        if output.finish_reason == "abort":
            raise RequestAborted  # no stop reason means it
        changes = self._blocks.push(output.events)
        if output.finish_reason is not None:
            changes += self._blocks.end()
            self._reason, self._stop_sequence = stop_reason(
                output.finish_reason, output.stop, context_is_full=self._source.context_is_full
            )
        return changes

    def _begun(self, head: AnswerHead) -> MessageAnswer:
        return MessageAnswer(
            id=head.answer_id,
            type="message",
            role="assistant",
            model=head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._source.usage(),
            warnings=head.warnings or UNSET,
        )


class _BlockFrames:
    """Frames of the changes of one answer. The part shared by a block's frames is encoded once."""

    def __init__(self) -> None:
        self._index = -1
        self._delta = b""

    def of(self, change: Change) -> list[bytes]:
        match change:
            case Add(text=text):
                return [self._delta + _encode(text) + b"}}\n\n"]
            case Begin(block=block):
                self._index += 1
                kind, field = _DELTAS.get(str(block.__struct_config__.tag), _JSON_DELTA)
                self._delta = _DELTA % (self._index, kind, field)
                begun = b'"index":%d,"content_block":%s' % (self._index, _encode(block))
                return [_frame(b"content_block_start", begun)]
            case End(signature=signature):
                stop = _frame(b"content_block_stop", b'"index":%d' % self._index)
                return [self._signature(signature), stop] if signature else [stop]
            case _:
                assert_never(change)

    def _signature(self, signature: str) -> bytes:
        signed = b'"index":%d,"delta":{"type":"signature_delta","signature":%s}' % (self._index, _encode(signature))
        return _frame(b"content_block_delta", signed)


def _frame(kind: bytes, fields: bytes) -> bytes:
    return b'event: %s\ndata: {"type":"%s",%s}\n\n' % (kind, kind, fields)
