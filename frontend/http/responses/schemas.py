"""Request bodies of the Responses API. Null means the default; a field not listed here is refused by name."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.messages.sampling_params import MAX_TOKENS

from ...conversation.messages import MAX_MESSAGES, MAX_TOOLS, Label, ReasoningEffort, Verbosity
from ...conversation.unknown_fields import check_number_of_nodes
from .tool_schemas import Name, Tool

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class InputText(_Fields, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None  # no effect: every prefix is cached


class OutputText(_Fields, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Output text of an earlier answer."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class PlainText(_Fields, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class Refusal(_Fields, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(_Fields, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(_Fields, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    text: str


Part = InputText | OutputText | PlainText | Refusal


class MessageItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An input message, or the message of an earlier answer that is sent back."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: Label | None = None
    status: ItemStatus | None = None
    phase: Label | None = None


class FunctionCallItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    call_id: Label
    name: Name
    arguments: str
    id: Label | None = None
    status: ItemStatus | None = None
    namespace: Label | None = None
    caller: dict[str, Any] | None = None


class FunctionCallOutputItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    call_id: Label
    output: str | list[Part]
    id: Label | None = None
    status: ItemStatus | None = None
    name: Label | None = None  # the call has both names
    namespace: Label | None = None
    caller: dict[str, Any] | None = None


class CustomCallItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    call_id: Label
    name: Name
    input: str
    id: Label | None = None
    status: ItemStatus | None = None
    namespace: Label | None = None
    caller: dict[str, Any] | None = None


class CustomCallOutputItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call_output"):
    call_id: Label
    output: str | list[Part]
    id: Label | None = None
    status: ItemStatus | None = None
    name: Label | None = None  # the call has both names
    namespace: Label | None = None
    caller: dict[str, Any] | None = None


class ReasoningItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier answer: the text, or else its encoded form, or else the summary."""

    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None  # that of other servers is ignored, because it cannot be decrypted
    id: Label | None = None
    status: ItemStatus | None = None


class WebSearchCallItem(_Fields, frozen=True, kw_only=True, tag_field="type", tag="web_search_call"):
    """A search that OpenAI ran earlier in the conversation. The prompt leaves it out: it has no results."""

    id: Label | None = None
    status: Label | None = None
    action: dict[str, Any] | None = None


class ItemReference(_Fields, frozen=True, kw_only=True, tag_field="type", tag="item_reference"):
    """A reference to an item of a stored response."""

    id: Label


CallItem = FunctionCallItem | CustomCallItem
CallOutputItem = FunctionCallOutputItem | CustomCallOutputItem
GivenItem = MessageItem | CallItem | CallOutputItem | ReasoningItem | WebSearchCallItem
InputItem = GivenItem | ItemReference


class TextFormat(_Fields, frozen=True, kw_only=True):
    """The required form of the text. The fields except `type` belong to json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(_Fields, frozen=True, kw_only=True):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class Reasoning(_Fields, frozen=True, kw_only=True):
    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None  # no effect: the answer has the reasoning
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Label | None = None
    mode: Label | None = None


class ResponsesStreamOptions(_Fields, frozen=True, kw_only=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(_Fields, frozen=True, kw_only=True):
    """A request. Fields that a chat has as well have the same bounds, which the translated chat checks."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None  # default: until the context is full
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    # Fields of vLLM.
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None  # no effect: it limits the calls of OpenAI's own tools
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[Label] | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Label | None = None
    # Labels and hints for other providers; no byte of the output depends on them.
    metadata: dict[str, str] | None = None
    client_metadata: dict[str, Any] | None = None  # of Codex
    user: Label | None = None
    safety_identifier: Label | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    prompt_cache_options: dict[str, Any] | None = None


class _Item(msgspec.Struct):
    type: Any = None


class _Items(msgspec.Struct):
    input: list[_Item]


_decode_items = msgspec.json.Decoder(_Items).decode


def with_types(raw: bytes) -> bytes:
    """Add the type to input items that have none: `message` to items with a role, `item_reference` to items with only
    an id.

    Raises InvalidRequest for a body with too many parts.
    """
    check_number_of_nodes(raw)
    try:
        if all(item.type is not None for item in _decode_items(raw).input):
            return raw
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return raw  # not a list, or invalid otherwise, which its decoder reports
    body["input"] = [_with_type(item) for item in body["input"]]
    return msgspec.json.encode(body)


def _with_type(item: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in item.items() if name != "type" or value is not None}
    if "role" in given:
        return {"type": "message", **given}
    return {"type": "item_reference", **given} if given.keys() == {"id"} else item
