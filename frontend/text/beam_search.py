"""Beam search on top of the engine: each step requests one token for every beam; the caller sends the requests.

A beam's score is the sum of its log-probabilities divided by length ** length_penalty, as in vLLM: the length includes
the prompt but not the end token. The engine finds all tokens of a beam in its prefix cache, also those of a partial
block, so a step computes one token for each beam.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

MAX_LENGTH_PENALTY = 40  # a million tokens to this power, and its inverse, are finite floats


class HasLogprob(Protocol):
    logprob: float


Entry = TypeVar("Entry", bound=HasLogprob)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Parameters of a beam search. Raises InvalidRequest for values out of range."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # for the one token sampled per step; the most likely tokens are always candidates
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # whether the text includes that of the end token
    skip_special_tokens: bool = True  # whether the text omits special tokens
    structured_outputs: None = None  # refused otherwise

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} is {value!r:.100}; it must be an integer of at least 1", name)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidRequest(f"{name} is {value!r:.100}; it must be true or false", name)
        if self.structured_outputs is not None:
            raise InvalidRequest(
                "structured_outputs: a beam search follows no grammar; use SamplingParams with best_of instead",
                "structured_outputs",
            )
        penalty, most = self.length_penalty, MAX_LENGTH_PENALTY
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not -most <= penalty <= most:
            says = f"length_penalty is {penalty!r:.100}; it must be a number from -{most} to {most}"
            raise InvalidRequest(says, "length_penalty")

    def step_params(self, num_logprobs: int = 0) -> SamplingParams:
        """Parameters of one step of one beam, with at least `num_logprobs` log-probabilities."""
        num_candidates = max(2 * self.beam_width, num_logprobs)
        return SamplingParams(logprobs=num_candidates, max_tokens=1, temperature=self.temperature)


def check_beam_width(width: int, max_logprobs: int, field: str) -> None:
    """Raises InvalidRequest if the candidates of a beam exceed the log-probabilities that the server gives."""
    if 2 * width > max_logprobs:
        raise InvalidRequest(
            f"{field} is {width}; the limit of a beam search is {max_logprobs // 2}, half of "
            f"max_logprobs={max_logprobs}",
            field,
        )


@dataclass(frozen=True, slots=True)
class BeamSearchSequence(Generic[Entry]):
    """`tokens` begins with the prompt; `logprobs` has the candidates for each later token."""

    tokens: list[int]
    logprobs: list[Mapping[int, Entry]] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def score(self, length_penalty: float) -> float:
        length = len(self.tokens) - (self.finish_reason == "stop")
        return self.cum_logprob / float(length**length_penalty)


class BeamSearch(Generic[Entry]):
    """The beam search of one prompt. While there are `beams`, request a token for each, and call `grow`."""

    def __init__(self, prompt: Sequence[int], params: BeamSearchParams, eos_token_ids: Collection[int]):
        self.beams: list[BeamSearchSequence[Entry]] = [BeamSearchSequence(list(prompt))]
        self._ended: list[BeamSearchSequence[Entry]] = []
        self._params = params
        self._eos_token_ids = () if params.ignore_eos else eos_token_ids

    def grow(self, candidates: Sequence[Mapping[int, Entry]]) -> None:
        """Continue each beam with each of its candidates, and keep the best ones. `candidates`: one entry per beam."""
        grown = list[BeamSearchSequence[Entry]]()
        for beam, of_beam in zip(self.beams, candidates, strict=True):
            for token, entry in of_beam.items():
                new = BeamSearchSequence(
                    [*beam.tokens, token], [*beam.logprobs, of_beam], beam.cum_logprob + entry.logprob
                )
                if token in self._eos_token_ids:
                    self._ended.append(replace(new, finish_reason="stop"))
                else:
                    grown.append(new)
        self.beams = self._sorted(grown)[: self._params.beam_width]

    def best(self) -> list[BeamSearchSequence[Entry]]:
        """At most `beam_width` sequences, the best first; those that have not ended have the full length."""
        found = [*self._ended, *(replace(beam, finish_reason="length") for beam in self.beams)]
        return self._sorted(found)[: self._params.beam_width]

    def _sorted(self, beams: list[BeamSearchSequence[Entry]]) -> list[BeamSearchSequence[Entry]]:
        return sorted(beams, key=lambda beam: beam.score(self._params.length_penalty), reverse=True)
