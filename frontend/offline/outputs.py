"""The outputs of LLM, with vLLM's names, the builder that collects them from deltas, and the choice of the best.

With best_of the engine generates more sequences than are returned; those with the highest probability are kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.sampling_params import FinishReason, RequestOutputKind, SamplingParams

from ..client.streams.deltas import SequenceDelta, TokenLogprobs
from ..text.sequence_text import SequenceText
from ..text.stop_strings import StopAutomaton
from ..text.tokenizer import Tokenizer
from .chat_message import Message, MessageReader
from .prompts import Prompt


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None  # 1 is the most likely
    decoded_token: str | None = None


LogprobsByToken = dict[int, Logprob]


@dataclass(slots=True)
class FlatLogprobs(Sequence[LogprobsByToken]):
    """The entries of all positions in lists, which the garbage collector visits faster than an object for each.

    Position i has the entries [start_indices[i], end_indices[i]); as an item it is a dict, empty where there is none.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    @classmethod
    def of(cls, positions: Iterable[LogprobsByToken | None]) -> "FlatLogprobs":
        flat = cls()
        for position in positions:
            flat.start_indices.append(len(flat.token_ids))
            for token, entry in (position or {}).items():
                flat.token_ids.append(token)
                flat.logprobs.append(entry.logprob)
                flat.ranks.append(entry.rank)
                flat.decoded_tokens.append(entry.decoded_token)
            flat.end_indices.append(len(flat.token_ids))
        return flat

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsByToken: ...
    @overload
    def __getitem__(self, index: slice) -> "FlatLogprobs": ...
    def __getitem__(self, index: int | slice) -> "LogprobsByToken | FlatLogprobs":
        if isinstance(index, slice):
            return FlatLogprobs.of(self[i] for i in range(len(self))[index])
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in range(self.start_indices[index], self.end_indices[index])
        }


@dataclass(slots=True)
class CompletionOutput:
    """One sequence."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None  # None unless logprobs were requested
    logprobs: list[LogprobsByToken] | FlatLogprobs | None = None  # one per token; the token itself comes first
    finish_reason: str | None = None  # "stop", "length", "repetition", "abort", "error"
    stop_reason: int | str | None = None  # the stop token or string; None for EOS; the text of an error
    message: Message | None = None  # of a finished chat output: to be appended to the conversation

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One prompt and all its sequences."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsByToken | None] | FlatLogprobs | None = None  # one per token; None for the first
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestTimes | None = None  # times of the slowest sequence
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache


def to_logprobs(
    entries: list[TokenLogprobs], tokenizer: Tokenizer, *, are_named: bool = False
) -> list[LogprobsByToken]:
    """One dict per position: the token itself with its rank, then the top k tokens or, with `are_named`, those of
    logprob_token_ids, which have no rank."""
    found = []
    for entry in entries:
        places = range(1, len(entry.token_ids))
        ranks: list[int | None] = [entry.rank, *([None] * len(places) if are_named else places)]
        by_token: LogprobsByToken = {}
        for token, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True):
            by_token.setdefault(token, Logprob(logprob, rank, tokenizer.token_text(token)))
        found.append(by_token)
    return found


class OutputBuilder:
    """Builds one RequestOutput from deltas."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, prompt_token_ids: list[int], params: SamplingParams):
        self.output = RequestOutput("", prompt.text, prompt_token_ids)
        chat = prompt.chat
        self._messages = None if chat is None else MessageReader(tokenizer, chat, prompt_token_ids, params)
        self._tokenizer = tokenizer
        stops = StopAutomaton(params.stop)
        tags = frozenset[int]() if self._messages is None else self._messages.tags
        self._texts = [SequenceText(tokenizer, prompt_token_ids, params, stops, tags) for _ in range(params.n)]
        has_logprobs, self._are_named = params.logprobs is not None, bool(params.logprob_token_ids)
        self.output.outputs = [
            CompletionOutput(index, "", [], 0.0 if has_logprobs else None, [] if has_logprobs else None)
            for index in range(params.n)
        ]

    def push(self, delta: SequenceDelta) -> bool:
        """Add a delta. Returns True if it completes a stop string, so that the sequence must be aborted."""
        output = self.output
        output.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            output.prompt_logprobs = [None, *to_logprobs(delta.prompt_logprobs, self._tokenizer)]
        if delta.times is not None and (output.metrics is None or _total(delta.times) > _total(output.metrics)):
            output.metrics = delta.times
        sequence = output.outputs[delta.index]
        if sequence.finished():  # by a stop string; this delta is the engine's confirmation
            return False
        new = self._texts[delta.index].push(delta.token_ids, delta.finish_reason, delta.stop_token_id)
        shown = new.text if self._messages is None else self._messages.push(delta.index, delta.token_ids, new)
        sequence.text += shown
        sequence.token_ids += delta.token_ids[: new.num_tokens]
        if isinstance(sequence.logprobs, list) and sequence.cumulative_logprob is not None:
            entries = (delta.logprobs or [])[: new.num_tokens]
            sequence.logprobs += to_logprobs(entries, self._tokenizer, are_named=self._are_named)
            for entry in entries:  # one by one: the sum must not depend on how many tokens arrive at once
                sequence.cumulative_logprob += entry.logprobs[0]
        if new.finish_reason is not None:
            sequence.finish_reason = new.finish_reason.api_name
            sequence.stop_reason = delta.error if new.finish_reason is FinishReason.ERROR else new.stop_reason
            output.finished = all(other.finished() for other in output.outputs)
            if self._messages is not None:
                sequence.message = self._messages.message(delta.index)
        return new.hit_stop_string

    def snapshot(self) -> RequestOutput:
        """A copy of the output, which later deltas do not change."""
        output = self.output
        return replace(output, outputs=[_copy(sequence) for sequence in output.outputs])

    def abort(self) -> None:
        """Mark unfinished sequences as aborted, for a request that was never submitted."""
        for sequence in self.output.outputs:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORT.api_name
        self.output.finished = True


class NewParts:
    """Reduces cumulative outputs to their new parts."""

    def __init__(self) -> None:
        self._num_chars: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}
        self._has_begun = False

    def of(self, output: RequestOutput) -> RequestOutput:
        new = [self._of(sequence) for sequence in output.outputs]
        logprobs = None if self._has_begun else output.prompt_logprobs
        self._has_begun = True
        return replace(output, outputs=[each for each in new if each is not None], prompt_logprobs=logprobs)

    def _of(self, sequence: CompletionOutput) -> CompletionOutput | None:
        chars, tokens = self._num_chars.get(sequence.index, 0), self._num_tokens.get(sequence.index, 0)
        if tokens == -1:
            return None  # it ended in an earlier output
        self._num_chars[sequence.index] = len(sequence.text)
        self._num_tokens[sequence.index] = -1 if sequence.finished() else len(sequence.token_ids)
        if len(sequence.token_ids) == tokens and not sequence.finished():
            return None
        logprobs = None if sequence.logprobs is None else sequence.logprobs[tokens:]
        return replace(sequence, text=sequence.text[chars:], token_ids=sequence.token_ids[tokens:], logprobs=logprobs)


def _copy(sequence: CompletionOutput) -> CompletionOutput:
    logprobs = None if sequence.logprobs is None else [*sequence.logprobs]
    return replace(sequence, token_ids=[*sequence.token_ids], logprobs=logprobs)


def _total(times: RequestTimes) -> float:
    return times.queued_s + times.prefill_s + times.decode_s


def in_form(output: RequestOutput, params: SamplingParams) -> RequestOutput:
    """The output with its log-probabilities in the form that the caller wants."""
    if not params.flat_logprobs:
        return output
    sequences = [replace(each, logprobs=_flat(each.logprobs)) for each in output.outputs]
    return replace(output, outputs=sequences, prompt_logprobs=_flat(output.prompt_logprobs))


def _flat(positions: Sequence[LogprobsByToken | None] | None) -> FlatLogprobs | None:
    return None if positions is None else FlatLogprobs.of(positions)


def generated(params: SamplingParams) -> SamplingParams:
    """The parameters that the engine gets: with all sequences, and the log-probability of each token."""
    if params.flat_logprobs:
        params = msgspec.structs.replace(params, flat_logprobs=False)
    if not _drops_some(params):
        return params if params.best_of is None else msgspec.structs.replace(params, best_of=None)
    return msgspec.structs.replace(params, n=params.best_of, best_of=None, logprobs=params.logprobs or 0)


def check_output_kind(params: SamplingParams) -> None:
    """Raises InvalidRequest if outputs are wanted before it is known which are the best."""
    if _drops_some(params) and params.output_kind is not RequestOutputKind.FINAL_ONLY:
        raise InvalidRequest(
            f"best_of is {params.best_of} and n is {params.n}: which outputs are the best is known at the end; set "
            "output_kind to RequestOutputKind.FINAL_ONLY",
            "best_of",
        )


def keep_best(output: RequestOutput, params: SamplingParams) -> None:
    """Keep the n sequences with the highest cumulative log-probability, the best first; of equal ones the earlier.

    `params`: as given by the caller. Sequences that failed come last.
    """
    if not _drops_some(params):
        return
    ranked = sorted(output.outputs, key=lambda each: (each.finish_reason == "error", -(each.cumulative_logprob or 0.0)))
    output.outputs = ranked[: params.n]
    for index, sequence in enumerate(output.outputs):
        sequence.index = index
        if params.logprobs is None:
            sequence.logprobs = sequence.cumulative_logprob = None


def _drops_some(params: SamplingParams) -> bool:
    return params.best_of is not None and params.best_of > params.n
