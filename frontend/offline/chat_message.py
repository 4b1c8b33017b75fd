"""Turns the output of a chat into the message that a program appends to its conversation."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..parsers.events import Arguments, CallStart, Content, Event, Reasoning
from ..parsers.output_reading import OutputReading
from ..text.sequence_text import SequenceText
from ..text.tokenizer import Tokenizer

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatReading:
    """How the outputs of one conversation are parsed."""

    reading: OutputReading | None  # None: the whole text is content
    calls: StructuredOutputsParams | None = None  # the grammar that tool_choice and strict tools impose


class MessageReader:
    """Makes the messages of all outputs of one prompt. The ids of tool calls are derived from the prompt's tokens."""

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatReading, prompt_token_ids: Sequence[int], params: SamplingParams
    ):
        self._tokenizer, self._reading, self._params = tokenizer, chat.reading, params
        if chat.reading is not None and params.grammar is not None and chat.calls is None:
            self._reading = chat.reading.of_form()
        self._prompt = prompt_token_ids

    def message(self, index: int, text: str, token_ids: Sequence[int], by_token: bool) -> Message:
        """The message of a finished output. `by_token`: its last token was a stop token."""
        if self._reading is None:
            return {"role": "assistant", "content": text}
        shown = SequenceText(
            self._tokenizer, self._prompt, self._params, tags=self._reading.tag_tokens(self._tokenizer)
        )
        written = shown.push(token_ids, FinishReason.STOP if by_token else None)
        text = written.text + shown.push((), FinishReason.LENGTH).text
        return self._message(index, self._reading.parser().push(text, True, written.tag_ends))

    def _message(self, index: int, events: Sequence[Event]) -> Message:
        content, reasoning, calls = "", "", list[dict[str, Any]]()
        for event in events:
            match event:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case CallStart(number, name, call_id):
                    function = {"name": name, "arguments": ""}
                    calls.append({"id": call_id or self._id(index, number), "type": "function", "function": function})
                case Arguments(text=text):
                    calls[-1]["function"]["arguments"] += text
        message: Message = {"role": "assistant", "content": content or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        return {**message, "tool_calls": calls} if calls else message

    def _id(self, index: int, number: int) -> str:
        prompt = struct.pack(f"<{len(self._prompt)}i", *self._prompt)
        return f"call_{hashlib.sha256(prompt + struct.pack('<2i', index, number)).hexdigest()[:24]}"
