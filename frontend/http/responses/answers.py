"""Response bodies of the Responses API: a response, and the items of its output."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Status = Literal["in_progress", "completed", "incomplete"]  # of an item
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class _Answer(msgspec.Struct, kw_only=True, gc=False):
    pass


class TokenLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int]


class OutputLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class OutputTextPart(_Answer, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[OutputLogprob]


class ReasoningTextPart(_Answer, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(_Answer, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: Status
    content: list[OutputTextPart]


class ReasoningOutput(_Answer, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningTextPart]
    encrypted_content: str | UnsetType = UNSET  # the text, encoded


class FunctionCallOutput(_Answer, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str  # JSON
    namespace: str | UnsetType = UNSET


class CustomCallOutput(_Answer, tag_field="type", tag="custom_tool_call"):
    id: str
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | ReasoningOutput | FunctionCallOutput | CustomCallOutput


class InputTokensDetails(_Answer):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(_Answer):
    reasoning_tokens: int


class ResponseUsage(_Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(_Answer):
    reason: Literal["max_output_tokens"]


class ResponseError(_Answer):
    code: Literal["server_error", "invalid_prompt"]
    message: str


class Response(_Answer):
    """The fields of the request that are repeated, and the output."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    warnings: list[str] | UnsetType = UNSET


class InputTokens(_Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int
    warnings: list[str] | UnsetType = UNSET


class DeletedResponse(_Answer):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItemList(_Answer):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
