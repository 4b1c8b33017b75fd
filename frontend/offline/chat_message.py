"""Turns the output of a chat into the message that a program appends to its conversation."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..parsers.events import Arguments, CallStart, Content, Event, Reasoning
from ..parsers.output_reading import OutputReading
from ..text.sequence_text import TextDelta
from ..text.tokenizer import Tokenizer

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatReading:
    """How the outputs of one conversation are parsed."""

    reading: OutputReading | None  # None: the whole text is content
    calls: StructuredOutputsParams | None = None  # the grammar that tool_choice and strict tools impose


class _TaggedText:
    """The text of one output, with its tags."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.tag_ends: list[int] = []
        self._num_chars = 0
        self._hidden: list[tuple[int, int]] = []  # [start, end) of tags that are hidden, from the last piece on

    def push(self, new: TextDelta, hidden: Sequence[tuple[int, int]]) -> str:
        """The next piece without the parts that are hidden. A stop string that it may begin delays it."""
        start, end = self._num_chars, self._num_chars + len(new.text)
        self.pieces.append(new.text)
        self.tag_ends += new.tag_ends
        self._num_chars = end
        shown, at = "", start
        for tag in (pending := [*self._hidden, *hidden]):
            shown += new.text[at - start : max(at, tag[0]) - start]
            at = max(at, tag[1])
        self._hidden = [tag for tag in pending if tag[1] > end]
        return shown + new.text[at - start :]


class MessageReader:
    """Makes the messages of all outputs of one prompt. The ids of tool calls are derived from the prompt's tokens.

    Call `push` for each delta, and `message` when its output has finished.
    """

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatReading, prompt_token_ids: Sequence[int], params: SamplingParams
    ):
        self._tokenizer, self._reading = tokenizer, chat.reading
        if chat.reading is not None and params.grammar is not None and chat.calls is None:
            self._reading = chat.reading.of_form()
        self._prompt = prompt_token_ids
        self.tags = frozenset[int]() if self._reading is None else self._reading.tag_tokens(tokenizer)
        self._hidden = self.tags & tokenizer.special_token_ids if params.skip_special_tokens else frozenset[int]()
        self._outputs = [_TaggedText() for _ in range(params.n)]

    def push(self, index: int, token_ids: Sequence[int], new: TextDelta) -> str:
        """Add the tokens of a delta, whose text has the tags. Returns the text without those that are hidden."""
        output = self._outputs[index]
        tags = (token for token in token_ids if token in self.tags)
        hidden = [
            (end - len(self._tokenizer.token_text(token)), end)
            for token, end in zip(tags, new.tag_ends, strict=False)  # a stop token at the end is not in the text
            if token in self._hidden
        ]
        return output.push(new, hidden)

    def message(self, index: int) -> Message:
        """The message of a finished output."""
        output = self._outputs[index]
        text = "".join(output.pieces)
        if self._reading is None:
            return {"role": "assistant", "content": text}
        return self._message(index, self._reading.parser().push(text, True, output.tag_ends))

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
