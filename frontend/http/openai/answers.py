"""Response bodies in OpenAI's form. UNSET fields are left out; None is written as null."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """Base of all bodies; instances have no reference cycles."""


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # of a chat, if known


class Timings(Answer):
    """Timings in the form of llama.cpp's server: milliseconds and tokens per second over all choices. Waiting counts as
    prompt time."""

    cache_n: int  # prompt tokens that were in the prefix cache
    prompt_n: int  # prompt tokens that were computed
    prompt_ms: float  # from the request's arrival to its first token
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float  # from the first token to the last
    predicted_per_token_ms: float | None
    predicted_per_second: float | None

    @classmethod
    def of(cls, cached: int, computed: int, prompt_s: float, generated: int, generation_s: float) -> "Timings":
        return cls(
            cache_n=cached,
            prompt_n=computed,
            prompt_ms=round(1000 * prompt_s, 3),
            prompt_per_token_ms=_ratio(1000 * prompt_s, computed),
            prompt_per_second=_ratio(computed, prompt_s),
            predicted_n=generated,
            predicted_ms=round(1000 * generation_s, 3),
            predicted_per_token_ms=_ratio(1000 * generation_s, generated),
            predicted_per_second=_ratio(generated, generation_s),
        )


def _ratio(of: float, to: float) -> float | None:
    return round(of / to, 3) if to else None


class PromptLogprob(Answer):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]  # one per prompt token; None for the first


class CompletionLogprobs(Answer):
    """Each list has one entry per token; with echo the prompt's tokens come first."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    timings: Timings | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[ChatLogprob]


class FunctionCall(Answer, kw_only=True):
    """In a stream the name is sent once, and the arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str  # JSON


class CustomCall(Answer, kw_only=True):
    """Streamed like a FunctionCall."""

    name: str | UnsetType = UNSET
    input: str


class ToolCall(Answer, kw_only=True):
    """Has either `function` or `custom`."""

    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET
    index: int | UnsetType = UNSET  # only in a stream


class ChatAnswerMessage(Answer):
    """The message of an answer. Reasoning is sent under both names in use."""

    role: Literal["assistant"]
    content: str | None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET  # if the request has functions


class ChatChoice(Answer):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer):
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
    timings: Timings | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChatDelta(Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatChunkChoice(Answer):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None  # of a LoRA adapter, the base model
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[Model]


class Tokens(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Text(Answer):
    prompt: str


class Version(Answer):
    version: str


class Load(Answer):
    """Requests that this frontend is answering."""

    server_load: int
