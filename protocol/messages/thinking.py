"""Limits the reasoning of an output, in tokens of one model."""

from typing import Annotated, Any

from msgspec import Meta

from ..errors import InvalidRequest
from .message import Count, Record, TokenId

MAX_TAG_TOKENS = 32
MAX_COUNT = 2**31 - 1

_Tag = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_TAG_TOKENS)]


class ThinkingBudget(Record, frozen=True):
    """Forces the tokens of `end` once `max_tokens` tokens have followed `begin`, unless the grammar forbids it.

    A worker finds both tags in the row's output, so a row restored with its output resumes in the same state. Raises
    InvalidRequest.
    """

    max_tokens: Count
    begin: _Tag
    end: _Tag
    num_prompt_tokens: Count | None = None  # of the budget, used by the prompt; None: the prompt ends outside reasoning

    def __post_init__(self) -> None:
        for name in ("max_tokens", "num_prompt_tokens"):
            count: Any = getattr(self, name)
            if name == "num_prompt_tokens" and count is None:
                continue
            if type(count) is not int or not 0 <= count <= MAX_COUNT:
                raise _invalid(f"{name} is {count!r:.100}; it must be between 0 and {MAX_COUNT}")
        for name in ("begin", "end"):
            tag: Any = getattr(self, name)
            if not isinstance(tag, tuple) or not 0 < len(tag) <= MAX_TAG_TOKENS:
                raise _invalid(f"{name} is {tag!r:.100}; it must be a tuple of 1 to {MAX_TAG_TOKENS} token ids")
            if not all(type(token) is int and 0 <= token <= MAX_COUNT for token in tag):
                raise _invalid(f"{name} is {tag!r:.100}; its entries must be token ids")


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"thinking.{what}", "thinking")
