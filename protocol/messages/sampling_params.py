"""The sampling parameters of a request, with every bound in one table. Names and defaults are vLLM's."""

import sys
from copy import deepcopy
from enum import IntEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from ..parameter_keywords import WithKeywords, bounded_bias
from .logits_processors import MAX_LOGITS_PROCESSORS, LogitsProcessorParams, as_processors
from .message import MAX_TOKEN_ID, TokenId, check_length, check_strings, check_token_ids
from .samplers import Dry, RepetitionDetection, ThinkingBudget, Xtc
from .structured_outputs import Grammar, StructuredOutputsParams

MAX_N = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 18  # about the largest vocabularies
MAX_TOKENS = 2**31 - 1
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
GREEDY_BELOW = 1e-5  # a lower temperature means argmax


class FinishReason(IntEnum):
    """Why a sequence ended; `api_name` is the spelling users see. Values begin at 1, so each reason is true."""

    STOP = 1  # EOS, a stop token, or a stop string
    LENGTH = 2  # max_tokens or the context's end
    ABORT = 3
    ERROR = 4
    REPETITION = 5  # repetition_detection found one

    @property
    def api_name(self) -> str:
        return self.name.lower()

    def __str__(self) -> str:  # a program that prints a delta of the client library shows "stop", not 1
        return self.api_name


# field -> (lowest, highest), both allowed; exceptions are in _check
BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "best_of": (1, MAX_N),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, MAX_TOKEN_ID),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, 100),
    "seed": (MIN_SEED, MAX_SEED),
    "max_tokens": (1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "logprobs": (-1, MAX_TOKEN_ID),
    "prompt_logprobs": (-1, MAX_TOKEN_ID),
    "thinking_token_budget": (-1, MAX_TOKENS),
}
OPTIONAL = {"best_of", "seed", "max_tokens", "logprobs", "prompt_logprobs", "thinking_token_budget"}
INTEGERS = {"n", "top_k", "min_tokens", *OPTIONAL}
BOOLEANS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "skip_reading_prefix_cache",
)
_MAX_FLOAT = sys.float_info.max
# The same limits again in the types, so that a decoder refuses a long list before it builds it.
_Text = Annotated[str, Meta(max_length=MAX_STOP_STRING_CHARS)]
_BadWord = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_BAD_WORD_TOKENS)]


class RequestOutputKind(IntEnum):
    """What each output of a stream carries: all so far, only what is new, or all at the end. Names are vLLM's."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, metaclass=WithKeywords
):
    """How to sample one request. Raises InvalidRequest naming the field, the value and the limit.

    The engine reads token ids only: the frontend turns `stop` strings into its own search, `bad_words` into
    `bad_words_token_ids` and `structured_outputs` into `grammar` before it sends the request.
    """

    n: int = 1  # sequences from one prompt
    best_of: int | None = None  # sequences generated, of which the n most likely are kept; not sent to the engine
    temperature: float = 1.0  # below 1e-5: greedy
    top_p: float = 1.0  # > 0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # > 0; over prompt and output
    seed: int | None = None  # None or -1: the engine chooses one
    max_tokens: int | None = 16  # None: until the context is full
    min_tokens: int = 0  # EOS and stop tokens are masked until then
    ignore_eos: bool = False
    stop: Annotated[tuple[_Text, ...], Meta(max_length=MAX_STOP_STRINGS)] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    include_stop_str_in_output: bool = False
    bad_words: Annotated[tuple[_Text, ...], Meta(max_length=MAX_BAD_WORDS)] = ()
    bad_words_token_ids: Annotated[tuple[_BadWord, ...], Meta(max_length=2 * MAX_BAD_WORDS)] = ()  # set by the frontend
    logit_bias: Annotated[dict[TokenId, float], Meta(max_length=MAX_LOGIT_BIAS)] | None = None  # added, within ±100
    allowed_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    grammar: Grammar | None = None  # set by the frontend
    thinking_token_budget: int | None = None  # tokens of reasoning, then its end is forced; None or -1: any number
    thinking: ThinkingBudget | None = None  # set by the frontend
    logits_processors: Annotated[
        tuple[LogitsProcessorParams, ...], Meta(max_length=MAX_LOGITS_PROCESSORS)
    ] = ()  # of plugins; in this order, before everything else
    dry: Dry | None = None
    xtc: Xtc | None = None
    logprobs: int | None = None  # top-k per output token besides the sampled one; -1: the whole vocabulary
    logprob_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_LOGPROB_TOKEN_IDS)] = ()  # replaces the top-k
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False  # LLM returns them in lists; not sent to the engine
    detokenize: bool = True
    skip_special_tokens: bool = True
    skip_reading_prefix_cache: bool = False
    repetition_detection: RepetitionDetection | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE  # of AsyncLLM's outputs; not sent to the engine

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            value: Any = getattr(self, name)
            self._set(name, (value,) if isinstance(value, str) else _as_tuple(name, value))
        self._set("stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        name = "bad_words_token_ids"
        self._set(name, tuple(_as_tuple(name, word) for word in _as_tuple(name, self.bad_words_token_ids)))
        name = "logprob_token_ids"
        self._set(name, _as_tuple(name, self.logprob_token_ids))
        self._set("logits_processors", as_processors(self.logits_processors))
        if self.logprob_token_ids and self.logprobs is None:
            self._set("logprobs", len(self.logprob_token_ids))
        if type(self.output_kind) is int and self.output_kind in [*RequestOutputKind]:  # as decoded from the wire
            self._set("output_kind", RequestOutputKind(self.output_kind))
        _check(self)

    def _set(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    @classmethod
    def from_optional(cls, **fields: Any) -> "SamplingParams":
        """From fields of a JSON body, as in vLLM: texts name tokens in logit_bias, whose values are brought within
        bounds."""
        if isinstance(bias := fields.get("logit_bias"), dict):
            fields["logit_bias"] = bounded_bias(bias)
        return cls(**fields)

    def clone(self) -> "ChangeableSamplingParams":
        """A copy whose fields may be set."""
        return ChangeableSamplingParams(**{name: deepcopy(getattr(self, name)) for name in self.__struct_fields__})

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequest when any token id named here lies outside the model's vocabulary."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": tuple(self.logit_bias or ()),
            "logprob_token_ids": self.logprob_token_ids,
            "bad_words_token_ids": tuple(token for word in self.bad_words_token_ids for token in word),
            "grammar": () if self.grammar is None else self.grammar.after + self.grammar.opens,
            "dry_sequence_breakers": () if self.dry is None else self.dry.breaker_token_ids,
            "thinking": () if self.thinking is None else self.thinking.begin + self.thinking.end,
        }
        for field, ids in named.items():
            if ids and not 0 <= min(ids) <= (highest := max(ids)) < vocab_size:
                wrong = highest if highest >= vocab_size else min(ids)
                raise InvalidRequest(f"{field} names token {wrong}; the vocabulary is 0..{vocab_size - 1}", field)


class ChangeableSamplingParams(SamplingParams, frozen=False, eq=False):  # type: ignore[misc]  # msgspec allows it
    """SamplingParams whose fields may be set, as in vLLM; LLM checks them when they are used."""

    def checked(self) -> SamplingParams:
        """Raises InvalidRequest naming the field, the value and the limit."""
        return SamplingParams(**{name: getattr(self, name) for name in self.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        names = self.__struct_fields__
        return isinstance(other, SamplingParams) and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]


_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "structured_outputs": StructuredOutputsParams,
    "grammar": Grammar,
    "thinking": ThinkingBudget,
    "repetition_detection": RepetitionDetection,
    "dry": Dry,
    "xtc": Xtc,
}


def _as_tuple(field: str, value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise InvalidRequest(f"{field} is {value!r:.100}; it must be a list", field)
    return tuple(value or ())


def _check(params: SamplingParams) -> None:
    for name, (low, high) in BOUNDS.items():
        value = getattr(params, name)
        if value is None and name in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int if name in INTEGERS else (int, float)):
            kind = "an integer" if name in INTEGERS else "a number"
            raise InvalidRequest(f"{name} is {value!r:.100}; it must be {kind}", name)
        if not low <= value <= high:  # also true for NaN
            raise InvalidRequest(f"{name} is {value!r:.100}; it must be between {low} and {high}", name)
    for name in BOOLEANS:
        if not isinstance(getattr(params, name), bool):
            raise InvalidRequest(f"{name} is {getattr(params, name)!r:.100}; it must be true or false", name)
    if params.top_p == 0:
        raise InvalidRequest("top_p is 0; it must be above 0 and at most 1", "top_p")
    if params.repetition_penalty == 0:
        raise InvalidRequest("repetition_penalty is 0; it must be above 0 and at most 100", "repetition_penalty")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(f"min_tokens is {params.min_tokens}, above max_tokens={params.max_tokens}", "min_tokens")
    if params.best_of is not None and params.best_of < params.n:
        raise InvalidRequest(f"best_of is {params.best_of}, below n={params.n}; leave it out or raise it", "best_of")
    _check_lists(params)
    if not isinstance(params.output_kind, RequestOutputKind):
        raise InvalidRequest(
            f"output_kind is {params.output_kind!r:.100}; it must be a RequestOutputKind", "output_kind"
        )
    for name, struct in _STRUCTS.items():
        if not isinstance(value := getattr(params, name), struct | None):
            raise InvalidRequest(f"{name} is of type {type(value).__name__}; it must be a {struct.__name__}", name)
    if params.structured_outputs is not None or params.grammar is not None:
        _check_with_grammar(params)


def _check_lists(params: SamplingParams) -> None:
    """Check the length and the entries of every list, and contradictions with other parameters."""
    check_strings("stop", params.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS)
    if params.stop and not params.detokenize:
        raise InvalidRequest("stop needs text and detokenize is false; leave one of them out", "stop")
    check_strings("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_STOP_STRING_CHARS)
    check_token_ids("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    check_token_ids("logprob_token_ids", params.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
    if (num_named := len(params.logprob_token_ids)) and params.logprobs != num_named:
        raise InvalidRequest(
            f"logprob_token_ids names {num_named} tokens and logprobs is {params.logprobs}; leave logprobs out",
            "logprob_token_ids",
        )
    name = "bad_words_token_ids"
    check_length(name, params.bad_words_token_ids, 2 * MAX_BAD_WORDS)  # each with and without a space before it
    for word in params.bad_words_token_ids:
        check_token_ids(name, word, MAX_BAD_WORD_TOKENS)
        if not word:
            raise InvalidRequest(f"{name} has a word without tokens", name)
    if params.allowed_token_ids is not None:
        check_token_ids("allowed_token_ids", params.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        if not params.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty; leave it out or name one token", "allowed_token_ids")
    if params.logit_bias is not None:
        _check_logit_bias(params.logit_bias)


def _check_with_grammar(params: SamplingParams) -> None:
    """Refuse parameters that contradict a grammar, which decides the allowed tokens and the end of the output."""
    for name in ("ignore_eos", "min_tokens", "allowed_token_ids"):
        if getattr(params, name):
            raise InvalidRequest(f"{name} contradicts structured_outputs; leave one of them out", name)


def _check_logit_bias(logit_bias: Any) -> None:
    if not isinstance(logit_bias, dict):
        raise InvalidRequest(f"logit_bias is {logit_bias!r:.100}; it must map token ids to numbers", "logit_bias")
    check_token_ids("logit_bias", logit_bias, MAX_LOGIT_BIAS)
    for token, bias in logit_bias.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -_MAX_FLOAT <= bias <= _MAX_FLOAT:
            raise InvalidRequest(f"logit_bias of token {token} is {bias!r:.100}; it must be finite", "logit_bias")
