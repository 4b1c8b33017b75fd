"""Turns the events of an output into a message of a chat completion or the delta of a chunk."""

from collections.abc import Sequence

from msgspec import UNSET

from ...parsers.events import Arguments, CallStart, Content, Event, Reasoning
from .answers import ChatAnswerMessage, ChatDelta, CustomCall, FunctionCall, ToolCall


def delta_of(events: Sequence[Event]) -> ChatDelta:
    """The delta of one piece; the beginning of a call and its first arguments are one entry."""
    delta, calls = ChatDelta(), list[ToolCall]()
    for event in events:
        match event:
            case Content(text):
                delta.content = text if delta.content is UNSET else delta.content + text
            case Reasoning(text):
                delta.reasoning = text if delta.reasoning is UNSET else delta.reasoning + text
                delta.reasoning_content = delta.reasoning
            case CallStart(index):
                calls.append(_call(event))
                calls[-1].index = index
            case Arguments(index, text):
                if not calls or calls[-1].index != index:
                    calls.append(ToolCall(index=index))
                _add_arguments(calls[-1], text, is_custom=event.is_custom)
    if calls:
        delta.tool_calls = calls
    return delta


def _call(start: CallStart, arguments: str = "") -> ToolCall:
    if start.is_custom:
        return ToolCall(id=start.id, type="custom", custom=CustomCall(name=start.name, input=arguments))
    return ToolCall(id=start.id, type="function", function=FunctionCall(name=start.name, arguments=arguments))


def _add_arguments(call: ToolCall, text: str, *, is_custom: bool) -> None:
    if is_custom:
        call.custom = CustomCall(input="") if call.custom is UNSET else call.custom
        call.custom.input += text
    else:
        call.function = FunctionCall(arguments="") if call.function is UNSET else call.function
        call.function.arguments += text


def as_function_call(message: ChatAnswerMessage | ChatDelta) -> None:
    """Move the call to `function_call`, for requests with `functions`."""
    if message.tool_calls is not UNSET:
        message.function_call = message.tool_calls[0].function
        message.tool_calls = UNSET


class MessageBuilder:
    """Builds the message of one choice from its events."""

    def __init__(self) -> None:
        # Joined once, because appending to a str copies it.
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart():
                    self._calls.append((event, []))
                case Arguments(index, text):
                    self._calls[index][1].append(text)

    def message(self) -> ChatAnswerMessage:
        calls = [_call(start, "".join(arguments)) for start, arguments in self._calls]
        reasoning = "".join(self._reasoning)
        content = "".join(self._content) or (None if calls or reasoning else "")
        message = ChatAnswerMessage(role="assistant", content=content)
        if reasoning:
            message.reasoning = message.reasoning_content = reasoning
        if calls:
            message.tool_calls = calls
        return message
