"""The parts of a conversation: messages, tool calls, tools, with OpenAI's names. Unknown fields are refused."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .sent_back import WithFunctionCall, WithMessage, WithPart, WithTool, WithToolCall

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_KWARGS = 16
MAX_JSON_DEPTH = 64

Label = Annotated[str, Meta(max_length=512)]
SmallInt = Annotated[int, Meta(ge=-(2**31), le=2**31)]
TemplateValue = bool | SmallInt | float | Annotated[str, Meta(max_length=4096)] | None
TemplateKwargs = Annotated[dict[str, TemplateValue], Meta(max_length=MAX_TEMPLATE_KWARGS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


class TextPart(WithPart, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(WithPart, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """A refusal by the assistant, in place of an answer."""

    refusal: str


class FunctionCall(WithFunctionCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(WithToolCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call of an earlier answer."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(WithMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | RefusalPart] | None = None
    name: Label | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Label | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None  # the assistant's refusal, when content is null
    function_call: FunctionCall | None = None  # the predecessor of tool_calls; its results have the role function
    audio: None = None  # clients send back the null that they received
    type: Literal["text"] | None = None  # lm-eval marks each message as text


def continued_text(messages: Sequence[ChatMessage]) -> str:
    """The text of the last message, if its answer continues it."""
    content = messages[-1].content or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


class Function(WithTool, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WithTool, frozen=True, kw_only=True, forbid_unknown_fields=True):
    function: Function
    type: Literal["function"] | None = None


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
Functions = Annotated[list[Function], Meta(max_length=MAX_TOOLS)]


# Passed to the template as sent: templates read different keys, most often title and text.
Documents = Annotated[list[Annotated[dict[str, Any], Meta(min_length=1)]], Meta(max_length=MAX_DOCUMENTS)]


class Conversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a chat template."""

    messages: Messages
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None  # default: true, unless the final message is continued
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    tool_choice: str | dict[str, Any] | None = None  # affects generation; a template gets all tools or none
    parallel_tool_calls: bool | None = None
