"""Beam search over HTTP: the choices are the best beams, and n is the width. Fields and scores are vLLM's."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from paged_serve.protocol.errors import (
    EngineDead,
    InvalidRequest,
    Overloaded,
    PagedServeError,
    RequestAborted,
    RequestFailed,
)
from paged_serve.protocol.messages.sampling_params import FinishReason

from ....client.async_request import AsyncRequest
from ....client.streams.deltas import SequenceDelta, TokenLogprobs
from ....text.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence, check_beam_width
from ...service import Service
from ..generation import Generation, Prompt
from ..pieces import Piece
from ..request.schemas import BeamFields, SamplingFields

# With a beam search every token is one of the most likely ones; these fields would have no effect.
_CONTRADICTING = (
    *("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "stop"),
    *("stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "logprob_token_ids", "structured_outputs"),
    *("prompt_logprobs", "repetition_detection", "thinking_token_budget", "logits_processors", "response_format"),
    *("tools", "functions", "dry_multiplier", "xtc_probability", "vllm_xargs", "echo", "suffix"),
)
_NEUTRAL = {"top_p": 1, "top_k": -1, "repetition_penalty": 1, "thinking_token_budget": -1}


@dataclass(slots=True)
class _Candidate:
    logprob: float
    rank: int


def beam_params(service: Service, body: SamplingFields, prompt: Prompt) -> BeamSearchParams:
    """The parameters of the search for one prompt. Raises InvalidRequest for fields that contradict it."""
    assert isinstance(body, BeamFields)
    if body.stream:
        raise InvalidRequest("use_beam_search is true: beams are known at their end; leave out stream", "stream")
    for name in _CONTRADICTING:
        if getattr(body, name, None) not in (None, False, [], {}, "", _NEUTRAL.get(name)):
            raise InvalidRequest(f"{name} has no effect with use_beam_search; leave one of them out", name)
    check_beam_width(prompt.params.n, service.config.server.max_logprobs, "n")
    limit = service.max_model_len - len(prompt.token_ids)
    asked = prompt.params.max_tokens
    return BeamSearchParams(
        beam_width=prompt.params.n,
        max_tokens=limit if asked is None else min(asked, limit),
        ignore_eos=prompt.params.ignore_eos,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        include_stop_str_in_output=prompt.params.include_stop_str_in_output,
    )


class BeamGeneration(Generation):
    """Searches for all prompts together: each step is a request of one token for every beam.

    A request that is in flight when a process dies is resumed like any other.
    """

    def __init__(self, service: Service, prompts: list[Prompt], params: list[BeamSearchParams], *args: Any):
        """`params`: one per prompt; further arguments as Generation's."""
        super().__init__(service, prompts, *args)
        self._num_tops = prompts[0].params.logprobs
        eos_ids = service.engine.limits.eos_token_ids
        self._searches = [
            BeamSearch[_Candidate](prompt.token_ids, each, eos_ids)
            for prompt, each in zip(prompts, params, strict=True)
        ]
        self._steps = [each.step_params(self._num_tops or 0) for each in params]
        self._max_tokens = [each.max_tokens for each in params]

    async def submit(self) -> None:
        """The requests are submitted by `batches`, step by step."""
        self._service.in_progress.add(self)
        for prompt in self._prompts:
            self._service.metrics.submitted(len(prompt.token_ids), self._n, prompt.params.max_tokens)

    async def batches(self) -> AsyncGenerator[list[Piece], None]:
        """All choices, in one batch."""
        try:
            for step in range(max(self._max_tokens)):
                pairs = enumerate(zip(self._searches, self._max_tokens, strict=True))
                running = [number for number, (search, most) in pairs if step < most and search.beams]
                if not running:
                    break
                await self._grow(running, is_first=not step)
        except PagedServeError as error:
            if self._is_aborted:
                raise RequestAborted from error
            self._failed = True
            if isinstance(error, RequestFailed):
                self._service.metrics.failed(str(error))
            raise
        pieces = [
            piece for number, search in enumerate(self._searches) for piece in self._pieces(number, search.best())
        ]
        self._memory.taken(sum(len(piece.token_ids) for piece in pieces))
        yield pieces

    def _num_output_tokens(self) -> int:
        """Of the best beams so far; the choices get their tokens at the end."""
        return super()._num_output_tokens() or sum(
            len(beam.tokens) - len(prompt.token_ids)
            for prompt, search in zip(self._prompts, self._searches, strict=True)
            for beam in search.best()
        )

    async def _grow(self, numbers: Sequence[int], *, is_first: bool) -> None:
        """One step of the searches with these numbers."""
        if self._is_aborted:
            raise RequestAborted
        asked = [(number, beam.tokens) for number in numbers for beam in self._searches[number].beams]
        timeout_s = self._time_left() if is_first else 0.0  # a time limit is for the first token
        self._requests = [self._submitted(tokens, self._steps[number], timeout_s) for number, tokens in asked]
        deltas = [await self._delta(place, *each, is_first=is_first) for place, each in enumerate(asked)]
        if is_first:
            self._cached = [delta.num_cached_tokens for delta in deltas]
        found = iter(deltas)
        for number in numbers:
            search = self._searches[number]
            search.grow([_candidates(next(found)) for _ in search.beams])
        await asyncio.sleep(0)

    async def _delta(self, place: int, number: int, tokens: list[int], *, is_first: bool) -> SequenceDelta:
        """Of the step's request at this place. After the first step the search is accepted: a full engine gets the
        request again."""
        while True:
            try:
                return await _only_delta(self._requests[place])
            except Overloaded as full:
                if full.draining or is_first:
                    raise
                await asyncio.sleep(full.pause_s)
                self._requests[place] = self._submitted(tokens, self._steps[number], 0.0)

    def _pieces(self, number: int, beams: Sequence[BeamSearchSequence[_Candidate]]) -> list[Piece]:
        prompt, pieces = self._prompts[number], list[Piece]()
        for place, beam in enumerate(beams):
            index = number * self._n + place
            choice, tokens = self._choices[index], beam.tokens[len(prompt.token_ids) :]
            reason = FinishReason.STOP if beam.finish_reason == "stop" else FinishReason.LENGTH
            text = choice.text.push(tokens, reason, None)
            shown = tokens[: text.num_tokens]
            logprobs = None if self._num_tops is None else self._logprobs(shown, beam, self._num_tops)
            self._count(choice, len(shown), text.finish_reason, SequenceDelta(place, shown))
            pieces.append(Piece(index, text.text, shown, logprobs, text.finish_reason, text.stop_reason, text.tag_ends))
        return pieces

    def _logprobs(
        self, tokens: Sequence[int], beam: BeamSearchSequence[_Candidate], num_tops: int
    ) -> list[TokenLogprobs]:
        entries = []
        for token, candidates in zip(tokens, beam.logprobs, strict=False):
            tops = sorted(candidates, key=lambda each: candidates[each].rank)[:num_tops]
            ids = [token, *tops]
            entries.append(TokenLogprobs(ids, [candidates[each].logprob for each in ids], candidates[token].rank))
        return entries


async def _only_delta(request: AsyncRequest) -> SequenceDelta:
    """The delta of a request of one token. Raises RequestFailed or EngineDead."""
    with contextlib.suppress(StopAsyncIteration):
        delta = await request.__anext__()
        if delta.finish_reason is FinishReason.ERROR:
            raise RequestFailed(delta.error, delta.param)
        if delta.logprobs:
            return delta
    raise EngineDead("a request ended before its token")


def _candidates(delta: SequenceDelta) -> dict[int, _Candidate]:
    """The most likely tokens, after the sampled one, which may be none of them."""
    assert delta.logprobs
    [entry] = delta.logprobs
    ranks = [entry.rank, *range(1, len(entry.token_ids))]
    candidates: dict[int, _Candidate] = {}
    for token, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True):
        candidates.setdefault(token, _Candidate(logprob, rank))
    return candidates
