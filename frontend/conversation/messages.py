"""What a conversation is made of: messages, calls of tools, tools. Names are the field's; unknown ones are refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_TEMPLATE_KWARGS = 16
MAX_JSON_DEPTH = 64

Label = Annotated[str, Meta(max_length=512)]
SmallInt = Annotated[int, Meta(ge=-(2**31), le=2**31)]
TemplateValue = bool | SmallInt | float | Annotated[str, Meta(max_length=4096)] | None
TemplateKwargs = Annotated[dict[str, TemplateValue], Meta(max_length=MAX_TEMPLATE_KWARGS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As an earlier answer gave it."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Label | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Label | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # Clients send these back empty, as they got them.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: Function
    type: Literal["function"] = "function"


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]


class Conversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a chat template is given."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None  # true, unless the final message goes on
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
