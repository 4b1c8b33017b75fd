"""What an applied step means for its sequences."""

from array import array
from dataclasses import dataclass, field

from paged_serve.protocol.messages.engine_core import Logprobs
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import RowFailure

from ..requests.request import Sequence
from ..scheduling.decode_set import DecodeSet


@dataclass(slots=True)
class StepResults:
    """Results of one step, grouped by how they are delivered."""

    plain: DecodeSet  # rows with one more token, except those that end
    plain_tokens: "array[int]"
    detailed: dict[Sequence, int] = field(default_factory=dict)  # number of new tokens; these have details, or an end
    ended: dict[Sequence, FinishReason] = field(default_factory=dict)  # each of them detailed, or pooled
    logprobs: dict[Sequence, Logprobs] = field(default_factory=dict)
    not_finite: list[Sequence] = field(default_factory=list)  # their last token is meaningless and was not appended
    failed: dict[Sequence, RowFailure] = field(default_factory=dict)  # no token was sampled at the end
    pooled: dict[Sequence, Pooled] = field(default_factory=dict)  # vectors, with which sequences end without a token

    @property
    def num_tokens(self) -> int:
        """Tokens appended to outputs. `plain` also has the rows that `detailed` names."""
        return sum(self.plain.num_plain.values()) + sum(self.detailed.values())
