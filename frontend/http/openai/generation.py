"""The sequences of one HTTP request: turns the engine's deltas into pieces of text until the end or a disconnection."""

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from paged_serve.protocol.errors import EngineDead, PagedServeError, RequestExpired, RequestFailed
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ...client.async_request import AsyncRequest
from ...client.request_terms import RequestTerms
from ...client.streams.deltas import SequenceDelta, TokenLogprobs, tokens_then_error
from ...parsers.output_reading import OutputReading
from ...text.sequence_text import SequenceText
from ...text.stop_strings import StopAutomaton
from ..service import RequestInProgress, Service
from .answers import PromptTokensDetails, Timings, Usage
from .pieces import Piece
from .streaming.delta_batches import DeltaBatch, DeltaBatches
from .streaming.output_memory import OutputMemory
from .streaming.round_robin import RoundRobin
from .streaming.stream_interval import StreamInterval


@dataclass(slots=True)
class Prompt:
    """One prompt of a request, ready for the engine."""

    token_ids: "array[int]"
    params: SamplingParams
    text: str | None = None  # as sent, if it was a text and the answer repeats it
    warnings: Sequence[str] = ()  # about parameters that are not enforced
    reading: OutputReading | None = None  # of a chat whose outputs have calls or reasoning


@dataclass(slots=True)
class _Choice:
    text: SequenceText
    num_tokens: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finished: bool = False


class Generation:
    """Call `submit`, iterate `batches`, and `close` whatever happens; this aborts what is still running.

    `in_turn`: each batch is one piece of one token, in an order that does not depend on timing. `interval`:
    pieces are joined up to this number of tokens.
    """

    def __init__(
        self,
        service: Service,
        prompts: list[Prompt],
        terms: RequestTerms,
        request_id: str,
        arrival: float,
        memory: OutputMemory,
        in_turn: bool = False,
        interval: int = 1,
    ):
        self._service = service
        self._arrival = arrival
        self._memory = memory
        self._prompts = prompts
        self._terms = terms
        self._request_id = request_id
        self.answer_id = ""
        self._is_aborted = False  # by the operator
        self._n = prompts[0].params.n
        stops = StopAutomaton(prompts[0].params.stop)  # shared by all prompts
        self._choices = [
            _Choice(SequenceText(service.tokenizer, prompt.token_ids, prompt.params, stops, tags))
            for prompt, tags in zip(prompts, map(self._tags, prompts), strict=True)
            for _ in range(self._n)
        ]
        self._num_unfinished = len(self._choices)
        self._failed = False
        self._failures: dict[int, RequestFailed] = {}  # by choice; one is raised after the others' pieces
        self._in_turn = in_turn
        self._turns = RoundRobin(len(self._choices)) if in_turn else None
        self._interval = StreamInterval(interval)
        self._cached = [0] * len(prompts)
        self.prompt_logprobs: list[list[TokenLogprobs] | None] = [None] * len(prompts)
        self._requests: list[AsyncRequest] = []
        self._deltas = DeltaBatches(self._requests)

    def _tags(self, prompt: Prompt) -> frozenset[int]:
        """The tokens that the output's parser reads as tags."""
        return frozenset() if prompt.reading is None else prompt.reading.tag_tokens(self._service.tokenizer)

    def separate_tokens(self) -> None:
        """Make each batch one piece of one token, as with `in_turn`. Call it before the first batch."""
        self._turns = self._turns or RoundRobin(len(self._choices))

    async def submit(self) -> None:
        """Submit all prompts to the engine; other tasks may run between two of them."""
        self._service.in_progress.add(self)
        for prompt in self._prompts:
            if self._requests:
                await asyncio.sleep(0)
            self._service.metrics.submitted(len(prompt.token_ids), self._n, prompt.params.max_tokens)
            self._requests.append(self._submitted(prompt.token_ids, prompt.params, self._time_left()))
            if self._is_aborted:
                self._requests[-1].abort()

    def _submitted(self, token_ids: Sequence[int], params: SamplingParams, timeout_s: float) -> AsyncRequest:
        terms = self._terms
        return self._service.engine.submit(
            token_ids,
            params,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant,
            weight=terms.weight,
            timeout_s=timeout_s,
            adapter=terms.adapter,
        )

    def _time_left(self) -> float:
        """Seconds left of the request's time limit, counted from its arrival; 0: no limit. Raises RequestExpired."""
        timeout_s = self._terms.timeout_s
        left = timeout_s - (time.monotonic() - self._arrival)
        if timeout_s and left <= 0:
            raise RequestExpired(f"timeout={timeout_s:g}: reading the request took longer; raise timeout")
        return left if timeout_s else 0.0

    async def batches(self) -> AsyncGenerator[list[Piece], None]:
        """Batches of the pieces available, until every choice has finished.

        Raises InvalidRequest or Overloaded when the engine refuses the request, EngineDead when it cannot continue, and
        RequestFailed, at the end, when it has dropped choices: the error of the one with the lowest number.
        """
        try:
            async with contextlib.aclosing(self._deltas.read()) as batches:
                async for batch in batches:
                    self._memory.taken(sum(len(delta.token_ids) for _, delta in batch))
                    for pieces in self._batches_in_turn(self._turns, batch) if self._turns else self._one_batch(batch):
                        if due := self._interval.joined(pieces):
                            yield due
                    self._memory.delivered(self._interval.num_tokens + (self._turns.num_tokens if self._turns else 0))
                    if not self._num_unfinished:
                        if rest := self._interval.rest():  # of choices that have failed
                            yield rest
                        if self._failures:
                            raise self._failures[min(self._failures)]
                        return
            raise EngineDead("a request ended before its sequences did")
        except PagedServeError:
            self._failed = True
            raise

    @property
    def fingerprint(self) -> str:
        """The system_fingerprint; another adapter may have been given the model's name meanwhile."""
        return self._service.fingerprint_with(self._terms.adapter)

    def usage(self) -> Usage:
        """The usage so far."""
        prompt_tokens = sum(len(prompt.token_ids) for prompt in self._prompts)
        completion_tokens = self._num_output_tokens()
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            # Cache hits depend on other requests, and this answer may have to be computed again, byte for byte.
            prompt_tokens_details=None if self._in_turn else PromptTokensDetails(cached_tokens=sum(self._cached)),
        )

    def timings(self) -> Timings:
        """The timings so far."""
        begun = [choice for choice in self._choices if choice.num_tokens]
        first = min((choice.first_token_at for choice in begun), default=self._arrival)
        last = max((choice.last_token_at for choice in begun), default=first)
        cached, num_generated = sum(self._cached), sum(choice.num_tokens for choice in begun)
        num_computed = sum(len(prompt.token_ids) for prompt in self._prompts) - cached
        return Timings.of(cached, num_computed, first - self._arrival, num_generated, last - first)

    def progress(self) -> RequestInProgress:
        num_tokens = self._num_output_tokens()
        return RequestInProgress(
            id=self._request_id,
            answer_id=self.answer_id,
            status="running" if num_tokens else "waiting",
            key=self._terms.tenant,
            frontend=self._service.index,
            age_s=round(time.monotonic() - self._arrival, 3),
            priority=self._terms.priority,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in self._prompts),
            output_tokens=num_tokens,
            num_choices=len(self._choices),
            num_unfinished=self._num_unfinished,
        )

    def _num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    def abort(self) -> None:
        """End the request, as its operator wants: the last piece of each choice has the reason `abort`."""
        self._is_aborted = True
        for request in self._requests:
            request.abort()

    def close(self) -> None:
        """Abort the sequences that are still running, if any."""
        self._service.in_progress.discard(self)
        self._deltas.close()
        if self._num_unfinished:
            for request in self._requests:
                request.abort()
        if self._requests and not self._failed:  # the client has disconnected
            self._service.metrics.ended(FinishReason.ABORT, self._num_unfinished)
            self._num_unfinished = 0

    def _one_batch(self, batch: DeltaBatch) -> Iterator[list[Piece]]:
        parts = ((number, part) for number, delta in batch for part in tokens_then_error(delta))
        pieces = [piece for number, part in parts if (piece := self._piece(number, part)) is not None]
        if pieces:
            yield pieces

    def _batches_in_turn(self, turns: RoundRobin, batch: DeltaBatch) -> Iterator[list[Piece]]:
        for number, delta in batch:
            turns.add(number * self._n + delta.index, delta)
        while (turn := turns.take()) is not None:
            index, delta = turn
            piece = self._piece(index // self._n, delta)
            if self._choices[index].finished:
                turns.end(index)
            if piece is not None:
                yield [piece]

    def _piece(self, number: int, delta: SequenceDelta) -> Piece | None:
        index = number * self._n + delta.index
        choice = self._choices[index]
        if choice.finished:
            return None  # the delta was in transit when a stop string ended the choice
        if delta.finish_reason is FinishReason.ERROR:
            self._service.metrics.failed(delta.error)
            self._failures[index] = RequestFailed(delta.error, delta.param)
            choice.finished = True
            self._num_unfinished -= 1
            return None
        self._cached[number] = max(self._cached[number], delta.num_cached_tokens)
        if self.prompt_logprobs[number] is None:  # each sequence brings them; a prompt of one token has an empty list
            self.prompt_logprobs[number] = delta.prompt_logprobs
        text = choice.text.push(delta.token_ids, delta.finish_reason, delta.stop_token_id)
        if text.hit_stop_string:
            self._requests[number].abort(delta.index, FinishReason.STOP)
        tokens = delta.token_ids[: text.num_tokens]
        logprobs = None if delta.logprobs is None else delta.logprobs[: text.num_tokens]
        self._count(choice, len(tokens), text.finish_reason, delta)
        return Piece(index, text.text, tokens, logprobs, text.finish_reason, text.stop_reason, text.tag_ends)

    def _count(self, choice: _Choice, num_tokens: int, reason: FinishReason | None, delta: SequenceDelta) -> None:
        metrics, now = self._service.metrics, time.monotonic()
        if num_tokens:
            if choice.num_tokens:
                metrics.next_token(now - choice.last_token_at)
            else:
                choice.first_token_at = now
                metrics.first_token(now - self._arrival)
            choice.num_tokens += num_tokens
            choice.last_token_at = now
        if reason is not None:
            choice.finished = True
            self._num_unfinished -= 1
            first = (choice.first_token_at or now) - self._arrival
            metrics.finished(reason, choice.num_tokens, now - self._arrival, first, delta.times)
            if not self._num_unfinished:
                self._count_prompts()

    def _count_prompts(self) -> None:
        for number, (prompt, num_cached) in enumerate(zip(self._prompts, self._cached, strict=True)):
            choices = self._choices[number * self._n : (number + 1) * self._n]
            longest = max(choice.num_tokens for choice in choices)
            self._service.metrics.prompt_finished(len(prompt.token_ids) - num_cached, longest)
