"""Truncation of prompts on request: `truncate_prompt_tokens` and `truncation_side`."""

from dataclasses import dataclass
from typing import Literal, Protocol

from paged_serve.protocol.errors import InvalidRequest

from ....admission import fitting_max_tokens, too_many_tokens
from ...service import Service

MAX_CUT_TOKENS = 1 << 18  # of a prompt before truncation, or the context if that is longer
WHOLE = -1  # as many tokens as fit


class TruncationFields(Protocol):
    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> Literal["left", "right"] | None: ...


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a prompt may be, and whether a longer one is truncated.

    `max_tokens`: limit of the prompt as sent; `kept`: tokens left after truncation, None if prompts are not truncated.
    """

    max_tokens: int
    kept: int | None = None
    side: Literal["left", "right"] = "left"  # the side that is cut

    def check_length(self, num_tokens: int, field: str) -> None:
        """Check the length of a list of tokens. Raises InvalidRequest."""
        if self.kept is None:
            fitting_max_tokens(num_tokens, None, None, self.max_tokens, field)
        elif num_tokens > self.max_tokens:
            raise InvalidRequest(
                f"{field} has {num_tokens} tokens; truncation accepts at most {self.max_tokens}", field
            )

    def check_text(self, text: str, longest_token_chars: int, field: str) -> None:
        """Raises InvalidRequest for a text that cannot fit however it is tokenized."""
        at_least = len(text) // longest_token_chars
        if at_least >= self.max_tokens:
            raise too_many_tokens(at_least, text, self.max_tokens, field)

    def cut(self, ids: list[int]) -> list[int]:
        if self.kept is None or len(ids) <= self.kept:
            return ids
        return ids[-self.kept :] if self.side == "left" else ids[: self.kept]


def limit_of(service: Service, body: TruncationFields, num_asked: int = 1) -> Limit:
    """The limit for this body; `num_asked`: output tokens that need room besides the prompt. Raises InvalidRequest."""
    longest, kept = service.max_model_len, body.truncate_prompt_tokens
    if kept is None:
        if body.truncation_side is not None:
            raise InvalidRequest("truncation_side needs truncate_prompt_tokens", "truncation_side")
        return Limit(longest)
    if kept == 0 or kept > longest:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {kept}; it must be from 1 to {longest}, this model's context length, or -1 for "
            "as many as fit",
            "truncate_prompt_tokens",
        )
    kept = max(1, longest - num_asked) if kept == WHOLE else kept
    return Limit(max(MAX_CUT_TOKENS, longest), kept, body.truncation_side or "left")
