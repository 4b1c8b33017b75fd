"""Request bodies of Anthropic's API. Null means the default; a field not listed here is refused by name."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.messages.message import MAX_TOKEN_ID
from paged_serve.protocol.messages.sampling_params import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKENS,
)

from ...conversation.messages import MAX_MESSAGES, MAX_TOOLS, Label

Name = Annotated[str, Meta(min_length=1, max_length=128)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARS)]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CacheControl(_Fields, frozen=True, kw_only=True):
    """Accepted but not used: every prompt is cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Label | None = None


class Caller(_Fields, frozen=True, kw_only=True):
    type: Literal["direct"]


class _Block(_Fields, frozen=True, kw_only=True, tag_field="type"):
    pass


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None  # of earlier answers; ignored, as templates have no citations


class LoneTextBlock(_Fields, frozen=True, kw_only=True):
    """A text block where no other type is possible; without this Struct msgspec would not require the tag."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class ToolUseBlock(_Block, frozen=True, kw_only=True, tag="tool_use"):
    """A tool call of an earlier answer."""

    id: Label
    name: Name
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Caller | None = None
    toolset_name: None = None


class ToolReferenceBlock(_Block, frozen=True, kw_only=True, tag="tool_reference"):
    """A deferred tool that a search by the client found."""

    tool_name: Name
    cache_control: CacheControl | None = None


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: Label
    content: str | list[TextBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


class ThinkingBlock(_Block, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Encrypted reasoning of another model, which cannot be read here."""

    data: str


ContentBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(_Fields, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ToolDefinition(_Fields, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: Name
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # no effect: arguments are always streamed as they are generated
    defer_loading: bool | None = None  # true: not offered before a tool_reference names it
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: Annotated[list[Any], Meta(max_length=0)] | None = None


class ToolSelection(_Fields, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None  # only with type tool
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(_Fields, frozen=True, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    # "updates" is like "summarized": no model here marks a part of its reasoning as a progress update.
    display: Literal["summarized", "omitted", "updates"] | None = None


class JsonFormat(_Fields, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(_Fields, frozen=True, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class KeepAll(_Fields, frozen=True, kw_only=True):
    type: Literal["all"]


class ContextEdit(_Fields, frozen=True, kw_only=True):
    """The only accepted edit has no effect; clients send it with every request."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | KeepAll


class ContextManagement(_Fields, frozen=True, kw_only=True):
    edits: list[ContextEdit] | None = None


class Diagnostics(_Fields, frozen=True, kw_only=True):
    previous_message_id: Label | None = None


class MessageMetadata(_Fields, frozen=True, kw_only=True):
    user_id: Label | None = None


class CountTokensRequest(_Fields, frozen=True, kw_only=True):
    """The fields that make the prompt, which both routes accept."""

    model: str | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[LoneTextBlock] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolSelection | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    # Fields for Anthropic's service; they have no effect here.
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID, description="0 or -1 is off")] | None = None
    stream: bool | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None
    thread: Annotated[Any, Meta(description="refused: conversations are not stored")] = None
