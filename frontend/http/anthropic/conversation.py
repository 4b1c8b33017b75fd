"""Translates messages of content blocks to the messages of a chat.

One message here may become several in a chat: the results of tools, then a text. Consecutive messages of one role
become one message, because many templates require alternating roles.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from paged_serve.protocol.errors import InvalidRequest

from ...conversation.conversation import check_depth
from ...conversation.messages import MAX_MESSAGES
from ..hidden_reasoning import decoded
from .schemas import (
    ContentBlock,
    InputMessage,
    LoneTextBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)

ChatMessage = dict[str, Any]
ERROR_MARK = "Error: "  # chats have no field for a failed tool call
# Claude Code's first system block, for Anthropic's gateway. It differs in every request, so prefixes would never match.
BILLING_HEADER = "x-anthropic-billing-header:"


def chat_messages(system: str | Sequence[LoneTextBlock] | None, messages: Sequence[InputMessage]) -> list[ChatMessage]:
    """Raises InvalidRequest for a block that a message of its role cannot have."""
    chat = _Chat()
    if system is not None and (text := _system_text(system)):
        chat.turn("system").texts.append(text)
    for i, message in enumerate(messages):
        blocks: Sequence[ContentBlock]
        blocks = [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
        _check_blocks(message.role, blocks, f"messages[{i}]")
        chat.add(message, blocks)
    if len(chat) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(chat)} turns and tool results; at most {MAX_MESSAGES} are accepted", "messages"
        )
    return chat.messages()


def ends_with_answer(messages: Sequence[ChatMessage]) -> bool:
    """Whether the model continues the last message. Raises InvalidRequest if that message has no text."""
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise InvalidRequest(
            "messages ends with a tool_use; a user message with its tool_result must follow", "messages"
        )
    if not last.get("content"):
        raise InvalidRequest(
            "messages ends with an assistant message without text; leave it out, or add the text to continue",
            "messages",
        )
    return True


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role. Texts are joined at the end, because appending to a str copies it."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> ChatMessage:
        # The texts of an answer are one text; calls may be between its parts.
        message: ChatMessage = {
            "role": self.role,
            "content": ("" if self.role == "assistant" else "\n").join(self.texts),
        }
        if any(self.thoughts):
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
            if not message["content"]:
                del message["content"]
        return message


class _Chat:
    """Builds the messages of a chat."""

    def __init__(self) -> None:
        self._turns: list[_Turn | ChatMessage] = []
        self._names: dict[str, str] = {}  # call id -> name of the tool

    def messages(self) -> list[ChatMessage]:
        return [turn.message() if isinstance(turn, _Turn) else turn for turn in self._turns]

    def __len__(self) -> int:
        return len(self._turns)

    def turn(self, role: str) -> _Turn:
        """The current turn if it has this role, else a new one."""
        last = self._turns[-1] if self._turns else None
        if not isinstance(last, _Turn) or last.role != role:
            self._turns.append(last := _Turn(role))
        return last

    def add(self, message: InputMessage, blocks: Sequence[ContentBlock]) -> None:
        if not blocks:
            self.turn(message.role)
        for block in blocks:
            match block:
                case TextBlock(text=text):
                    self.turn(message.role).texts.append(text)
                case ThinkingBlock(thinking=text, signature=signature):
                    self.turn(message.role).thoughts.append(text or decoded(signature or ""))
                case ToolUseBlock():
                    self.turn(message.role).calls.append(self._call(block))
                case ToolResultBlock():
                    self._turns.append(self._result(block))
                case RedactedThinkingBlock():
                    self.turn(message.role)
                case _:
                    assert_never(block)

    def _call(self, block: ToolUseBlock) -> dict[str, Any]:
        self._names[block.id] = block.name
        return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}

    def _result(self, block: ToolResultBlock) -> ChatMessage:
        content = block.content or ""
        text = content if isinstance(content, str) else "\n".join(map(_result_text, content))
        message: ChatMessage = {"role": "tool", "tool_call_id": block.tool_use_id}
        if name := self._names.get(block.tool_use_id):
            message["name"] = name
        return {**message, "content": f"{ERROR_MARK}{text}" if block.is_error else text}


def _result_text(part: TextBlock | ToolReferenceBlock) -> str:
    return part.text if isinstance(part, TextBlock) else f"Found the tool {part.tool_name}."


def _check_blocks(role: str, blocks: Sequence[ContentBlock], place: str) -> None:
    for i, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            continue
        if isinstance(block, ToolUseBlock):
            check_depth(block.input, f"{place}.content[{i}].input")
        kind = str(block.__struct_config__.tag)
        if role != ("user" if isinstance(block, ToolResultBlock) else "assistant"):
            raise InvalidRequest(
                f"{place}.content[{i}] is a {kind}, which a message of the role {role!r} cannot have",
                f"{place}.content[{i}].type",
            )


def _system_text(system: str | Sequence[LoneTextBlock]) -> str:
    if isinstance(system, str):
        return system
    return _joined(block for block in system if not block.text.startswith(BILLING_HEADER))


def _joined(blocks: Iterable[LoneTextBlock]) -> str:
    return "\n".join(block.text for block in blocks)
