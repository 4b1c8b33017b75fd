"""What LLM gives back, in the field's names, and how it grows from deltas."""

from dataclasses import dataclass, field, replace

from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..client.streams.deltas import SequenceDelta, TokenLogprobs
from ..text.sequence_text import SequenceText
from ..text.stop_strings import StopAutomaton
from ..text.tokenizer import Tokenizer


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None  # 1 is the most likely
    decoded_token: str | None = None


LogprobsByToken = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One sequence."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None  # None unless logprobs were asked for
    logprobs: list[LogprobsByToken] | None = None  # one a token; the token itself comes first
    finish_reason: str | None = None  # "stop", "length", "repetition", "abort", "error"
    stop_reason: int | str | None = None  # the stop token or string; None for EOS; the reason of an error

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One prompt and all its sequences."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsByToken | None] | None = None  # one a prompt token; None for the first
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestTimes | None = None  # of the sequence that took longest
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache


def to_logprobs(entries: list[TokenLogprobs], tokenizer: Tokenizer) -> list[LogprobsByToken]:
    """The token itself first, with its rank; then the top k, whose ranks are their places."""
    found = []
    for entry in entries:
        ranks = [entry.rank, *range(1, len(entry.token_ids))]
        by_token: LogprobsByToken = {}
        for token, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True):
            by_token.setdefault(token, Logprob(logprob, rank, tokenizer.token_text(token)))
        found.append(by_token)
    return found


class OutputBuilder:
    """Grows one RequestOutput."""

    def __init__(self, tokenizer: Tokenizer, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams):
        self.output = RequestOutput("", prompt, prompt_token_ids)
        self._tokenizer = tokenizer
        stops = StopAutomaton(params.stop)
        self._texts = [SequenceText(tokenizer, prompt_token_ids, params, stops) for _ in range(params.n)]
        has_logprobs = params.logprobs is not None
        self.output.outputs = [
            CompletionOutput(index, "", [], 0.0 if has_logprobs else None, [] if has_logprobs else None)
            for index in range(params.n)
        ]

    def push(self, delta: SequenceDelta) -> bool:
        """Take a delta in; True when it completed a stop string, so that the sequence must be aborted."""
        output = self.output
        output.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            output.prompt_logprobs = [None, *to_logprobs(delta.prompt_logprobs, self._tokenizer)]
        if delta.times is not None and (output.metrics is None or _total(delta.times) > _total(output.metrics)):
            output.metrics = delta.times
        sequence = output.outputs[delta.index]
        if sequence.finished():  # by a stop string; this is the engine's confirmation
            return False
        new = self._texts[delta.index].push(delta.token_ids, delta.finish_reason, delta.stop_token_id)
        sequence.text += new.text
        sequence.token_ids += delta.token_ids[: new.num_tokens]
        if sequence.logprobs is not None and sequence.cumulative_logprob is not None:
            entries = (delta.logprobs or [])[: new.num_tokens]
            sequence.logprobs += to_logprobs(entries, self._tokenizer)
            sequence.cumulative_logprob += sum(entry.logprobs[0] for entry in entries)
        if new.finish_reason is not None:
            sequence.finish_reason = new.finish_reason.api_name
            sequence.stop_reason = delta.error if new.finish_reason is FinishReason.ERROR else new.stop_reason
            output.finished = all(other.finished() for other in output.outputs)
        return new.hit_stop_string

    def snapshot(self) -> RequestOutput:
        """The output as it is now, which stays so while this one grows."""
        output = self.output
        return replace(output, outputs=[_copy(sequence) for sequence in output.outputs])

    def abort(self) -> None:
        """End what has not ended: the engine was never given it."""
        for sequence in self.output.outputs:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORT.api_name
        self.output.finished = True


def _copy(sequence: CompletionOutput) -> CompletionOutput:
    logprobs = None if sequence.logprobs is None else [*sequence.logprobs]
    return replace(sequence, token_ids=[*sequence.token_ids], logprobs=logprobs)


def _total(times: RequestTimes) -> float:
    return times.queued_s + times.prefill_s + times.decode_s
