"""The unit of output that the writers of answers receive."""

from collections.abc import Sequence
from dataclasses import dataclass

from paged_serve.protocol.messages.sampling_params import FinishReason

from ...client.streams.deltas import TokenLogprobs


@dataclass(slots=True)
class Piece:
    """The text and tokens that one delta adds to a choice. The choices of prompt p are p * n .. p * n + n - 1."""

    choice: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    tag_ends: Sequence[int] = ()  # where tags of their own tokens end, counted in characters of the choice's text
