"""Response bodies of Anthropic's API."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class _Answer(msgspec.Struct, kw_only=True, gc=False):
    pass


class TextContent(_Answer, tag_field="type", tag="text"):
    text: str


class ThinkingContent(_Answer, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""  # known at the end


class ToolUseContent(_Answer, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw  # a JSON object, as written by the model


Content = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(_Answer):
    """The number of prompt tokens is the sum of the first three fields."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(_Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET


class TokenCount(_Answer):
    input_tokens: int


class ModelInfo(_Answer):
    id: str
    type: Literal["model"]
    display_name: str
    created_at: str  # ISO 8601
    lifecycle: Literal["active"]
    max_input_tokens: int


class ModelPage(_Answer):
    """All models on one page."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str
    last_id: str
