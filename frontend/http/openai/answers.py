"""Response bodies, in the field's shapes. UNSET fields are left out; None is written as null."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class _Answer(msgspec.Struct, kw_only=True, gc=False):
    pass


class PromptTokensDetails(_Answer):
    cached_tokens: int


class CompletionTokensDetails(_Answer):
    reasoning_tokens: int


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # of a chat, where it is known


class PromptLogprob(_Answer):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]  # one a prompt token; the first has none


class CompletionLogprobs(_Answer):
    """One entry a token in each list; with echo the prompt's tokens come first."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(_Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(_Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    warnings: list[str] | UnsetType = UNSET


class TopLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    content: list[ChatLogprob]


class FunctionCall(_Answer, kw_only=True):
    """In a stream the name comes once, and the arguments piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str  # JSON


class ToolCall(_Answer, kw_only=True):
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall
    index: int | UnsetType = UNSET  # in a stream


class ChatAnswerMessage(_Answer):
    """Reasoning has two names in the field."""

    role: Literal["assistant"]
    content: str | None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(_Answer):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(_Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChatDelta(_Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(_Answer):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Model(_Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(_Answer):
    object: Literal["list"]
    data: list[Model]


class Tokens(_Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Text(_Answer):
    prompt: str


class Version(_Answer):
    version: str


class Load(_Answer):
    """Requests that this frontend is answering."""

    server_load: int
