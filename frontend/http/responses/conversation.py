"""Turns input items into the messages of a chat. One assistant message may be several items."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from paged_serve.protocol.errors import InvalidRequest

from ...parsers.custom_tools import arguments_of
from ..hidden_reasoning import decoded
from .schemas import (
    CallItem,
    CallOutputItem,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    GivenItem,
    MessageItem,
    Part,
    ReasoningItem,
    Refusal,
    WebSearchCallItem,
)
from .tools import function_name

ChatMessage = dict[str, Any]


def chat_messages(instructions: str | None, items: Sequence[GivenItem], num_earlier: int) -> list[ChatMessage]:
    """`num_earlier`: number of items of earlier responses. Raises InvalidRequest for an output without its call."""
    messages: list[ChatMessage] = [{"role": "system", "content": instructions}] if instructions else []
    return [*messages, *_joined(items, num_earlier)]


@dataclass(slots=True)
class _Answer:
    """An assistant message: reasoning, text and calls."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> ChatMessage:
        message: ChatMessage = {"role": "assistant"}
        if self.texts or not self.calls:
            message["content"] = "".join(self.texts)
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _joined(items: Sequence[GivenItem], num_earlier: int) -> Iterator[ChatMessage]:
    answer: _Answer | None = None
    names: dict[str, str] = {}  # call id -> name of the function
    for i, item in enumerate(items):
        match item:
            case MessageItem(role="assistant") | ReasoningItem():
                if answer is not None and (answer.calls or answer.texts):
                    yield answer.message()
                    answer = None
                answer = answer or _Answer()
                if isinstance(item, MessageItem):
                    answer.texts.append(_text(item.content))
                elif text := _reasoning(item):
                    answer.reasoning.append(text)
            case FunctionCallItem() | CustomCallItem():
                answer = answer or _Answer()
                names[item.call_id] = function_name(item.namespace, item.name)
                answer.calls.append(_call(item))
            case MessageItem() | FunctionCallOutputItem() | CustomCallOutputItem():
                if answer is not None:
                    yield answer.message()
                    answer = None
                if isinstance(item, MessageItem):
                    yield {"role": item.role, "content": _text(item.content)}
                else:
                    yield _output(item, names, f"input[{i - num_earlier}]")
            case WebSearchCallItem():
                pass
            case _:
                assert_never(item)
    if answer is not None:
        yield answer.message()


def _reasoning(item: ReasoningItem) -> str:
    text = "".join(part.text for part in item.content or ())
    return text or decoded(item.encrypted_content or "") or "".join(part.text for part in item.summary)


def _call(item: CallItem) -> dict[str, Any]:
    arguments = arguments_of(item.input) if isinstance(item, CustomCallItem) else item.arguments
    function = {"name": function_name(item.namespace, item.name), "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _output(item: CallOutputItem, names: dict[str, str], place: str) -> ChatMessage:
    if item.call_id not in names:
        kind = "custom_tool_call" if isinstance(item, CustomCallOutputItem) else "function_call"
        raise InvalidRequest(
            f"{place}.call_id is {item.call_id!r:.64}, which no {kind} before it has; send the call as well",
            f"{place}.call_id",
        )
    return {"role": "tool", "tool_call_id": item.call_id, "name": names[item.call_id], "content": _text(item.output)}


def _text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)
