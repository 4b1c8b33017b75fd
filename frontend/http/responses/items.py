"""Builds the items of a response's output incrementally: messages, reasoning, calls."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from ...parsers.events import Arguments, CallStart, Content, Event, Reasoning
from ..hidden_reasoning import encoded
from .answers import (
    CustomCallOutput,
    FunctionCallOutput,
    OutputItem,
    OutputLogprob,
    OutputMessage,
    OutputTextPart,
    ReasoningOutput,
    ReasoningTextPart,
    Status,
)
from .text_logprobs import TextLogprobs

Change = tuple[str, dict[str, Any]]  # the kind of an event, and its fields except the number
_NAMES = {OutputMessage: "response.output_text", ReasoningOutput: "response.reasoning_text"}


class Items:
    """`answer_id`: the ids of items are derived from it; set before the first item."""

    def __init__(self, namespaced: Mapping[str, tuple[str, str]], *, encodes_reasoning: bool) -> None:
        """`namespaced`: name of a function -> (namespace, name) of its tool; others have the function's name.
        `encodes_reasoning`: reasoning is also in `encrypted_content`."""
        self._namespaced, self._encodes_reasoning = namespaced, encodes_reasoning
        self.items: list[OutputItem] = []
        self.answer_id: str
        self._is_open = False
        self._texts: list[str] = []  # of the last item; joined once, because appending to a str copies it
        self._logprobs: list[OutputLogprob] = []  # of the text
        self._of_text = TextLogprobs()

    @property
    def ends_in_call(self) -> bool:
        """Whether the last item is a call."""
        return bool(self.items) and isinstance(self.items[-1], FunctionCallOutput | CustomCallOutput)

    def push(self, events: Sequence[Event], logprobs: Sequence[OutputLogprob]) -> list[Change]:
        """`logprobs`: of the tokens that were read before these events; they are sent with their text."""
        changes: list[Change] = []
        self._of_text.add(logprobs)
        for event in events:
            match event:
                case Content(text):
                    changes += self._begun(OutputMessage)
                    shown = self._of_text.take(text)
                    changes.append(self._delta(text, {"logprobs": shown}))
                    self._logprobs += shown
                case Reasoning(text):
                    self._of_text.drop()
                    changes += self._begun(ReasoningOutput)
                    changes.append(self._delta(text, {}))
                case CallStart():
                    self._of_text.drop()
                    changes += self.end()
                    changes += self._begin(self._call(event))
                case Arguments(text=text):
                    self._of_text.drop()
                    self._texts.append(text)
                    kind = "custom_tool_call_input" if event.is_custom else "function_call_arguments"
                    changes.append((f"response.{kind}.delta", {**self._place(), "delta": text}))
                case _:
                    assert_never(event)
        return changes

    def end(self, status: Status = "completed") -> list[Change]:
        """The changes that end the open item, if any."""
        if not self._is_open:
            return []
        self._is_open = False
        item, text, place = self.items[-1], "".join(self._texts), self._place()
        item.status = status
        if isinstance(item, FunctionCallOutput):
            item.arguments = text
            done = {**place, "name": item.name, "arguments": text}
            changes: list[Change] = [("response.function_call_arguments.done", done)]
        elif isinstance(item, CustomCallOutput):
            item.input = text
            changes = [("response.custom_tool_call_input.done", {**place, "input": text})]
        else:
            changes = self._end_part(item, text, place)
        return [*changes, ("response.output_item.done", {"output_index": len(self.items) - 1, "item": item})]

    def _end_part(self, item: OutputMessage | ReasoningOutput, text: str, place: dict[str, Any]) -> list[Change]:
        more: dict[str, Any] = {}
        part: OutputTextPart | ReasoningTextPart
        if isinstance(item, OutputMessage):
            part = OutputTextPart(text=text, annotations=[], logprobs=self._logprobs)
            item.content = [part]
            more = {"logprobs": self._logprobs}
        else:
            part = ReasoningTextPart(text=text)
            item.content = [part]
            if self._encodes_reasoning:
                item.encrypted_content = encoded(text)
        place = {**place, "content_index": 0}
        return [
            (f"{_NAMES[type(item)]}.done", {**place, "text": text, **more}),
            ("response.content_part.done", {**place, "part": part}),
        ]

    def _begun(self, kind: type[OutputMessage] | type[ReasoningOutput]) -> list[Change]:
        if self._is_open and isinstance(self.items[-1], kind):
            return []
        changes = self.end()
        part: OutputTextPart | ReasoningTextPart
        if kind is OutputMessage:
            part = OutputTextPart(text="", annotations=[], logprobs=[])
            begun = self._begin(OutputMessage(id=self._id("msg_"), role="assistant", status="in_progress", content=[]))
        else:
            part = ReasoningTextPart(text="")
            begun = self._begin(ReasoningOutput(id=self._id("rs_"), status="in_progress", summary=[], content=[]))
        return [*changes, *begun, ("response.content_part.added", {**self._place(), "content_index": 0, "part": part})]

    def _begin(self, item: OutputItem) -> list[Change]:
        self.items.append(item)
        self._is_open, self._texts, self._logprobs = True, [], []
        shown = msgspec.structs.replace(item)  # a copy of its current state
        return [("response.output_item.added", {"output_index": len(self.items) - 1, "item": shown})]

    def _call(self, start: CallStart) -> FunctionCallOutput | CustomCallOutput:
        namespace: str | UnsetType
        namespace, name = self._namespaced.get(start.name, (UNSET, start.name))
        if start.is_custom:
            return CustomCallOutput(
                id=self._id("ctc_"), status="in_progress", call_id=start.id, name=name, input="", namespace=namespace
            )
        return FunctionCallOutput(
            id=self._id("fc_"), status="in_progress", call_id=start.id, name=name, arguments="", namespace=namespace
        )

    def _id(self, prefix: str) -> str:
        """The id of the next item."""
        return prefix + hashlib.sha256(f"{self.answer_id} item {len(self.items)}".encode()).hexdigest()[:32]

    def _delta(self, text: str, more: dict[str, Any]) -> Change:
        self._texts.append(text)
        return f"{_NAMES[type(self.items[-1])]}.delta", {**self._place(), "content_index": 0, "delta": text, **more}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1].id, "output_index": len(self.items) - 1}
