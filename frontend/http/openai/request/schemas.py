"""Request bodies, with the names of OpenAI and vLLM. Null means the default; a field not listed is refused by name."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.logits_processors import MAX_LOGITS_PROCESSORS, LogitsProcessorParams
from paged_serve.protocol.messages.message import TokenId
from paged_serve.protocol.messages.samplers import RepetitionDetection
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ....conversation.messages import (
    Documents,
    Functions,
    Label,
    Messages,
    ReasoningEffort,
    TemplateKwargs,
    Tools,
    Verbosity,
)
from ....conversation.sent_back import WithPart
from . import fields

Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
TruncationSide = Literal["left", "right"]
ServiceTier = Literal["auto", "default"]
StringOrList = fields.StopString | fields.StopStringList


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's wrapper of a schema. The schema is enforced whether or not `strict` is set."""

    name: Label
    schema: dict[str, Any] | None = None  # None: any object
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each field except `type` belongs to one type."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None  # of json_object, as in llama.cpp's server
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The required form of the output: exactly one of `json` … `structural_tag`."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    disable_additional_properties: bool | None = None

    def params(self) -> StructuredOutputsParams:
        """Raises InvalidRequest."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return StructuredOutputsParams(**given)


Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Label], Meta(max_length=16)]


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cache hints for other providers. They have no effect here: every prefix is cached while there is room."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Label | None = None


class PredictedPart(WithPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prediction of the answer. It has no effect: it could make the answer faster, but never change it."""

    type: Literal["content"]
    content: str | list[PredictedPart]


class DryAndXtc(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samplers of llama.cpp's server that OpenAI and vLLM do not have, under its names."""

    dry_multiplier: fields.DryMultiplier | None = None  # default: 0
    dry_base: fields.DryBase | None = None  # default: 1.75
    dry_allowed_length: fields.DryAllowedLength | None = None  # default: 2
    dry_penalty_last_n: fields.DryPenaltyLastN | None = None  # default: -1
    dry_sequence_breakers: fields.DrySequenceBreakers | None = None  # default: newline, colon, double quote, asterisk
    xtc_probability: fields.XtcProbability | None = None  # default: 0
    xtc_threshold: fields.XtcThreshold | None = None  # default: 0.1


class Sampling(DryAndXtc, frozen=True, kw_only=True):
    """How tokens are sampled, and when an output ends."""

    n: fields.N | None = None
    temperature: fields.Temperature | None = None
    top_p: fields.TopP | None = None
    top_k: fields.TopK | None = None
    min_p: fields.MinP | None = None
    presence_penalty: fields.Penalty | None = None
    frequency_penalty: fields.Penalty | None = None
    repetition_penalty: fields.RepetitionPenalty | None = None
    seed: fields.Seed | None = None
    min_tokens: fields.MinTokens | None = None
    ignore_eos: bool | None = None
    stop: StringOrList | None = None
    stop_token_ids: fields.StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: fields.BadWords | None = None
    logit_bias: fields.LogitBias | None = None
    allowed_token_ids: fields.AllowedTokenIds | None = None
    logprob_token_ids: fields.LogprobTokenIds | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: fields.TopLogprobs | None = None
    detokenize: bool | None = None  # default: true
    skip_special_tokens: bool | None = None
    skip_reading_prefix_cache: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: fields.ThinkingTokenBudget | None = None
    logits_processors: Annotated[list[str | LogitsProcessorParams], Meta(max_length=MAX_LOGITS_PROCESSORS)] | None = (
        None
    )
    vllm_xargs: DryAndXtc | None = None  # for vLLM's clients, which cannot send other fields


class SamplingFields(Sampling, frozen=True, kw_only=True):
    """The fields of all generating routes."""

    model: str | None = None
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: fields.TruncatePromptTokens | None = None
    truncation_side: TruncationSide | None = None  # default: left
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: fields.StreamInterval | None = None  # default: 1
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | None = None
    timeout: fields.Timeout | None = None  # or the header X-Request-Timeout
    return_token_ids: bool | None = None
    timings_per_token: bool | None = None  # whether the answer or each event has timings
    return_tokens_as_token_ids: bool | None = None  # for logprobs
    request_id: fields.RequestId | None = None
    user: Label | None = None
    session_id: Label | None = None  # of vLLM's routers; like user, it changes no answer


class BeamFields(SamplingFields, frozen=True, kw_only=True):
    """The fields of the routes that can search beams."""

    use_beam_search: bool | None = None  # the choices are the best beams; n is the width
    length_penalty: fields.LengthPenalty | None = None  # default: 1


class CompletionRequest(BeamFields, frozen=True, kw_only=True):
    prompt: Prompt
    max_tokens: fields.MaxTokensOrNone | None = None  # default: 16
    logprobs: fields.TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None  # text after the output
    best_of: fields.BestOf | None = None  # sequences generated, of which the n with the highest probability are shown


class ChatFields(BeamFields, frozen=True, kw_only=True):
    """The fields of a chat, without its messages."""

    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None  # the older form of tools
    function_call: str | dict[str, Any] | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    include_reasoning: bool | None = None  # default: true
    max_tokens: fields.MaxTokens | None = None  # default: until the context is full
    max_completion_tokens: fields.MaxTokens | None = None
    echo: bool | None = None  # repeat the continued message in the answer
    logprobs: bool | None = None
    top_logprobs: fields.TopLogprobs | None = None
    # Labels and hints for other providers, like user; no byte of an answer depends on them.
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    metadata: Metadata | None = None
    prediction: Prediction | None = None
    service_tier: ServiceTier | None = None


class ChatCompletionRequest(ChatFields, frozen=True, kw_only=True):
    messages: Messages


class ChatBatchRequest(ChatFields, frozen=True, kw_only=True):
    """Several conversations, answered independently with the same parameters."""

    messages: Annotated[list[Messages], Meta(min_length=1, max_length=fields.MAX_PROMPTS)]


class TokenizeTextRequest(_Body, frozen=True, kw_only=True):
    prompt: str
    add_special_tokens: bool | None = None  # default: true
    truncate_prompt_tokens: fields.TruncatePromptTokens | None = None
    truncation_side: TruncationSide | None = None
    return_token_strs: bool | None = None


class ApplyTemplateRequest(_Body, frozen=True, kw_only=True):
    messages: Messages
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None


class TokenizeChatRequest(ApplyTemplateRequest, frozen=True, kw_only=True):
    add_special_tokens: bool | None = None  # default: false, because the template writes them
    truncate_prompt_tokens: fields.TruncatePromptTokens | None = None
    truncation_side: TruncationSide | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(_Body, frozen=True, kw_only=True):
    tokens: list[TokenId]


Body = TypeVar("Body", bound=SamplingFields)
_COUNTS = ("logprobs", "top_logprobs", "prompt_logprobs")


def with_logprobs(body: Body) -> Body:
    """The body, with as many `logprobs` as it has logprob_token_ids: these replace the top tokens, as in vLLM, whose
    clients must send `logprobs` beside them."""
    if not (named := body.logprob_token_ids):
        return body
    if not isinstance(body, ChatFields):
        return msgspec.structs.replace(body, logprobs=len(named))
    if body.logprobs is False:
        raise InvalidRequest(
            f"logprob_token_ids names {len(named)} tokens and logprobs is false; set it to true, or leave it out",
            "logprob_token_ids",
        )
    return msgspec.structs.replace(body, logprobs=True, top_logprobs=len(named))


def with_vocabulary(body: Body, vocab_size: int) -> Body:
    """The body with -1 (all tokens) replaced by the size of the vocabulary."""
    all_of = [name for name in _COUNTS if getattr(body, name, None) == -1]
    return msgspec.structs.replace(body, **dict.fromkeys(all_of, vocab_size)) if all_of else body


def without_prompt(body: Body) -> Body:
    """A copy to keep during the answer, without the fields that became prompt and parameters."""
    large = (
        *("prompt", "token_ids", "suffix", "messages", "tools", "functions", "documents", "chat_template_kwargs"),
        *("logit_bias", "allowed_token_ids", "bad_words", "response_format", "structured_outputs"),
        *("metadata", "prediction"),
    )
    return msgspec.structs.replace(body, **{name: None for name in large if hasattr(body, name)})
