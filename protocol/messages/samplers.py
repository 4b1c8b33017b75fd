"""Parameters of less common samplers: DRY ("don't repeat yourself") and XTC ("exclude top choices") of llama.cpp's
server, vLLM's repetition detection, which ends an output, and its limit of reasoning. Names, defaults and meaning are
theirs."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from .message import MAX_TOKEN_ID, Count, Record, TokenId, TokenIds, has_half_pair

MAX_MULTIPLIER = 100.0
MAX_BASE = 100.0
MAX_MATCH = 128  # tokens of a repetition that are counted
MAX_LAST_N = 2**31 - 1
MAX_BREAKERS = 32
MAX_BREAKER_CHARS = 40
MAX_BREAKER_TOKEN_IDS = 1 << 18  # about the largest vocabularies
DEFAULT_BREAKERS = ("\n", ":", '"', "*")

MAX_PATTERN_SIZE = 128  # tokens
MAX_REPEATED_TOKENS = 2048

_Text = Annotated[str, Meta(min_length=1, max_length=MAX_BREAKER_CHARS)]


class Dry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A token that continues a repetition of n >= allowed_length tokens loses multiplier * base^(n - allowed_length).

    A repetition is an end of the text so far that has occurred before and contains no breaker; at most 128 tokens of it
    count. Breakers are never penalized. Raises InvalidRequest.
    """

    multiplier: Annotated[float, Meta(ge=0, le=MAX_MULTIPLIER)]  # 0: off
    base: Annotated[float, Meta(ge=1, le=MAX_BASE)] = 1.75
    allowed_length: Annotated[int, Meta(ge=1, le=MAX_MATCH)] = 2  # tokens
    penalty_last_n: Annotated[int, Meta(ge=-1, le=MAX_LAST_N)] = -1  # tokens searched for repetitions; -1: all, 0: off
    sequence_breakers: Annotated[tuple[_Text, ...], Meta(max_length=MAX_BREAKERS)] = DEFAULT_BREAKERS
    breaker_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_BREAKER_TOKEN_IDS)] = ()  # by the frontend

    def __post_init__(self) -> None:
        numbers = (("multiplier", 0, MAX_MULTIPLIER), ("base", 1, MAX_BASE))
        for name, low, high in (*numbers, ("allowed_length", 1, MAX_MATCH), ("penalty_last_n", -1, MAX_LAST_N)):
            value: Any = getattr(self, name)
            types = (int, float) if name in ("multiplier", "base") else (int,)
            if type(value) not in types or not low <= value <= high:  # also true for NaN
                kind = "a number" if len(types) == 2 else "an integer"
                raise _invalid(name, f"is {value!r:.100}; it must be {kind} between {low:g} and {high:g}")
        for name in ("sequence_breakers", "breaker_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple):
                raise _invalid(name, f"is {value!r:.100}; it must be a list")
            msgspec.structs.force_setattr(self, name, tuple(value))
        breakers, ids = self.sequence_breakers, self.breaker_token_ids
        if len(breakers) > MAX_BREAKERS or not all(
            isinstance(text, str) and 0 < len(text) <= MAX_BREAKER_CHARS for text in breakers
        ):
            what = f"must be at most {MAX_BREAKERS} strings of 1 to {MAX_BREAKER_CHARS} characters"
            raise _invalid("sequence_breakers", what)
        if any(map(has_half_pair, breakers)):
            raise _invalid("sequence_breakers", "has half of a surrogate pair, which is not valid text")
        # Whole lists at C speed: a list may name much of a vocabulary, and the engine core checks it in its loop.
        has_others = bool(ids) and (set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) <= MAX_TOKEN_ID)
        if has_others or len(ids) > MAX_BREAKER_TOKEN_IDS:
            raise _invalid("breaker_token_ids", f"must be at most {MAX_BREAKER_TOKEN_IDS} token ids")

    @property
    def is_on(self) -> bool:
        return self.multiplier > 0 and self.penalty_last_n != 0


def _invalid(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"dry.{name} {what}", f"dry_{name}")


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Ends an output once its last tokens repeat one pattern `min_count` times. Raises InvalidRequest."""

    max_pattern_size: Annotated[int, Meta(ge=1, le=MAX_PATTERN_SIZE)]  # tokens
    min_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] = 1  # 0 is 1
    min_count: Annotated[int, Meta(ge=2, le=MAX_REPEATED_TOKENS)]

    def __post_init__(self) -> None:
        field = "repetition_detection"
        bounds = (
            ("max_pattern_size", 1, MAX_PATTERN_SIZE),
            ("min_pattern_size", 0, MAX_PATTERN_SIZE),
            ("min_count", 2, MAX_REPEATED_TOKENS),
        )
        for name, low, high in bounds:
            value: Any = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise InvalidRequest(f"{field}.{name} is {value!r:.100}; it must be between {low} and {high}", field)
        if self.min_pattern_size > self.max_pattern_size:
            raise InvalidRequest(
                f"{field}.min_pattern_size is {self.min_pattern_size}, above max_pattern_size={self.max_pattern_size}",
                field,
            )
        if (num_tokens := self.max_pattern_size * self.min_count) > MAX_REPEATED_TOKENS:
            raise InvalidRequest(
                f"{field}: {self.min_count} times {self.max_pattern_size} tokens are {num_tokens}; at most "
                f"{MAX_REPEATED_TOKENS} are compared",
                field,
            )


class Xtc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Removes, with `probability` in each step, every token of at least `threshold` but the least probable of them.

    The probabilities are those after temperature, min-p, top-k and top-p. Raises InvalidRequest.
    """

    probability: Annotated[float, Meta(ge=0, le=1)]  # 0: off
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.1  # above 0.5 at most one token reaches it, and none is removed

    def __post_init__(self) -> None:
        for name in ("probability", "threshold"):
            value: Any = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:  # also true for NaN
                raise InvalidRequest(
                    f"xtc.{name} is {value!r:.100}; it must be a number between 0 and 1", f"xtc_{name}"
                )


MAX_TAG_TOKENS = 32
MAX_TAG_NUMBER = 2**31 - 1

_TagTokens = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_TAG_TOKENS)]


class ThinkingBudget(Record, frozen=True):
    """Forces the tokens of `end` once `max_tokens` tokens have followed `begin`, unless the grammar forbids it.

    A worker finds both tags in the row's output, so a row restored with its output resumes in the same state. Raises
    InvalidRequest.
    """

    max_tokens: Count
    begin: _TagTokens
    end: _TagTokens
    num_prompt_tokens: Count | None = None  # of the budget, used by the prompt; None: the prompt ends outside reasoning
    calls: TokenIds = ()  # each begins a call, which ends reasoning as well

    def __post_init__(self) -> None:
        for name in ("max_tokens", "num_prompt_tokens"):
            count: Any = getattr(self, name)
            if name == "num_prompt_tokens" and count is None:
                continue
            if type(count) is not int or not 0 <= count <= MAX_TAG_NUMBER:
                raise _invalid_budget(f"{name} is {count!r:.100}; it must be between 0 and {MAX_TAG_NUMBER}")
        for name in ("begin", "end"):
            tag: Any = getattr(self, name)
            if not isinstance(tag, tuple) or not 0 < len(tag) <= MAX_TAG_TOKENS:
                raise _invalid_budget(f"{name} is {tag!r:.100}; it must be a tuple of 1 to {MAX_TAG_TOKENS} token ids")
            if not all(type(token) is int and 0 <= token <= MAX_TAG_NUMBER for token in tag):
                raise _invalid_budget(f"{name} is {tag!r:.100}; its entries must be token ids")
        if not isinstance(self.calls, tuple) or not all(type(token) is int for token in self.calls):
            raise _invalid_budget(f"calls is {self.calls!r:.100}; it must be a tuple of token ids")


def _invalid_budget(what: str) -> InvalidRequest:
    return InvalidRequest(f"thinking.{what}", "thinking")
