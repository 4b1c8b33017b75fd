"""Beam search on top of the engine: each step requests one token for every beam, and beams' prefixes are cached.

A beam's score is the sum of its log-probabilities divided by length ** length_penalty, as in vLLM: the length includes
the prompt but not the end token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..text.tokenizer import Tokenizer
from .outputs import LogprobsByToken, RequestOutput

OneStep = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Parameters of a beam search. Raises InvalidRequest for values out of range."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # for the one token sampled per step; the most likely tokens are always candidates
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # whether the text includes that of the end token

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} is {value!r}; it must be at least 1", name)


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """`tokens` begins with the prompt; `logprobs` has the candidates for each later token."""

    tokens: list[int]
    logprobs: list[LogprobsByToken] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def score(self, length_penalty: float) -> float:
        length = len(self.tokens) - (self.finish_reason == "stop")
        return self.cum_logprob / float(length**length_penalty)


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The sequences of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class _Search:
    """The beam search of one prompt."""

    beams: list[BeamSearchSequence]
    ended: list[BeamSearchSequence] = field(default_factory=list)


def beam_search(
    one_step: OneStep, prompts: Sequence[list[int]], params: BeamSearchParams, tokenizer: Tokenizer
) -> list[BeamSearchOutput]:
    """`one_step` generates one token for each beam, given the beams' tokens. Raises InvalidRequest."""
    step = SamplingParams(logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature)
    searches = [_Search([BeamSearchSequence(list(prompt))]) for prompt in prompts]
    for _ in range(params.max_tokens):
        asked = [beam.tokens for search in searches for beam in search.beams]
        if not asked:
            break
        outputs = iter(one_step(asked, step))
        for search in searches:
            _grow(search, [next(outputs) for _ in search.beams], params, tokenizer)
    return [_best(search, params, tokenizer) for search in searches]


def _grow(search: _Search, outputs: Sequence[RequestOutput], params: BeamSearchParams, tokenizer: Tokenizer) -> None:
    grown = list[BeamSearchSequence]()
    for beam, output in zip(search.beams, outputs, strict=True):
        [candidates] = output.outputs[0].logprobs or [{}]
        for token, logprob in candidates.items():
            new = BeamSearchSequence(
                [*beam.tokens, token], [*beam.logprobs, candidates], beam.cum_logprob + logprob.logprob
            )
            if token in tokenizer.eos_token_ids and not params.ignore_eos:
                search.ended.append(replace(new, finish_reason="stop"))
            else:
                grown.append(new)
    grown.sort(key=lambda beam: beam.score(params.length_penalty), reverse=True)
    search.beams = grown[: params.beam_width]


def _best(search: _Search, params: BeamSearchParams, tokenizer: Tokenizer) -> BeamSearchOutput:
    found = [*search.ended, *(replace(beam, finish_reason="length") for beam in search.beams)]
    found.sort(key=lambda beam: beam.score(params.length_penalty), reverse=True)
    return BeamSearchOutput([_with_text(beam, params, tokenizer) for beam in found[: params.beam_width]])


def _with_text(beam: BeamSearchSequence, params: BeamSearchParams, tokenizer: Tokenizer) -> BeamSearchSequence:
    hides_end = beam.finish_reason == "stop" and not params.include_stop_str_in_output
    shown = beam.tokens[:-1] if hides_end else beam.tokens
    return replace(beam, text=tokenizer.decode(shown, skip_special_tokens=not params.include_stop_str_in_output))
