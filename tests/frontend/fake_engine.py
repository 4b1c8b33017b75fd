"""An engine inside the process: sends the output that the test wrote, token by token, and records the requests."""

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import msgspec

from paged_serve.frontend.client.pooling import PoolingAnswer
from paged_serve.frontend.client.streams.deltas import SequenceDelta, TokenLogprobs
from paged_serve.protocol.errors import PagedServeError, RequestFailed
from paged_serve.protocol.messages.engine_core import RequestTimes, Utility, Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats

from .fake_core import POOLING, vector


@dataclass
class FakeRequest:
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str
    tenant: str
    weight: float
    timeout_s: float
    outputs: list[list[int]]  # one list per sequence
    eos: int | None
    refusal: PagedServeError | None
    fails_after: int | None
    per_delta: int
    burst: int
    pause_s: float
    aborted: list[tuple[int | None, FinishReason]] = field(default_factory=list)
    _positions: dict[int, int] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _taken: int = 0

    def __aiter__(self):
        return self

    async def __anext__(self) -> SequenceDelta:
        await asyncio.sleep(self.pause_s)
        if self.refusal is not None:
            raise self.refusal
        for index in range(self.params.n):
            if index not in self._done and (None, FinishReason.ABORT) in self.aborted:
                self._done.add(index)
                return SequenceDelta(index, [], finish_reason=FinishReason.ABORT)
            if index not in self._done:
                return self._delta((index + sum(self._positions.values())) % self.params.n)
        raise StopAsyncIteration

    def take(self) -> SequenceDelta | None:
        """The reader must wait for every `burst`-th delta."""
        self._taken += 1
        if (None, FinishReason.ABORT) in self.aborted:
            return None
        if self._taken % self.burst and len(self._done) < self.params.n:
            return self._delta(sum(self._positions.values()) % self.params.n)
        return None

    def abort(self, index: int | None = None, finish_reason: FinishReason = FinishReason.ABORT) -> None:
        self.aborted.append((index, finish_reason))

    def _delta(self, index: int) -> SequenceDelta:
        while index in self._done:
            index = (index + 1) % self.params.n
        start = self._positions.get(index, 0)
        limit = self.params.max_tokens if self.params.max_tokens is not None else 10**6
        whole = [*self.outputs[index % len(self.outputs)], *([] if self.eos is None else [self.eos])][:limit]
        tokens = whole[start : start + self.per_delta]
        self._positions[index] = start + len(tokens)
        reason = stop = None
        for i, token in enumerate(tokens):
            if token in self.params.stop_token_ids or (token == self.eos and not self.params.ignore_eos):
                reason, tokens = FinishReason.STOP, tokens[: i + 1]
                stop = token if token in self.params.stop_token_ids else None
        if reason is None and self._positions[index] >= len(whole):
            reason = FinishReason.LENGTH
        if self.fails_after is not None and self._positions[index] >= self.fails_after:
            reason = FinishReason.ERROR
        if reason is not None:
            self._done.add(index)
        width = self.params.logprobs
        return SequenceDelta(
            index,
            tokens,
            logprobs=None if width is None else [self._logprobs(token, width) for token in tokens],
            prompt_logprobs=self._prompt_logprobs() if start == 0 else None,
            finish_reason=reason,
            stop_token_id=stop,
            num_cached_tokens=1,
            times=RequestTimes(0.0, 0.1, 0.2, 0) if reason is not None else None,
            error="the device at /dev/secret failed" if reason is FinishReason.ERROR else "",
        )

    def _prompt_logprobs(self) -> list[TokenLogprobs] | None:
        width = self.params.prompt_logprobs
        return None if width is None else [self._logprobs(token, width) for token in self.prompt_token_ids[1:]]

    def _logprobs(self, token: int, width: int) -> TokenLogprobs:
        top = [(token + i) % 300 for i in range(width)]
        return TokenLogprobs([token, *top], [-0.5, *(-0.5 - i for i in range(width))], 1)


@dataclass
class FakePooling:
    """A pooling request; awaiting it gives the vector."""

    prompt_token_ids: list[int]
    params: PoolingParams
    terms: dict[str, object]
    size: dict[str, int]  # of the vector, by task
    refusals: list[PagedServeError]  # the first one is raised once
    pause_s: float
    answer: PoolingAnswer = field(default_factory=PoolingAnswer)
    aborted: bool = False

    def __await__(self) -> Generator[object, None, Pooled]:
        return self._vector().__await__()

    def abort(self) -> None:
        self.aborted = True

    async def _vector(self) -> Pooled:
        await asyncio.sleep(self.pause_s)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.aborted:
            raise RequestFailed("the request was aborted")
        self.answer.times = RequestTimes(0.0, 0.1, 0.0, 0)
        return vector(self.prompt_token_ids, self.params, self.size)


LIMITS = Welcome(0, 64, 400, 16, 100, 8)
POOLING_LIMITS = msgspec.structs.replace(LIMITS, **POOLING)  # of a pooling model
STATS = SchedulerStats(1, 2, 100, 75, 5, 10, 20, 30, 8, 0, 0.01, 4)


@dataclass
class FakeEngine:
    outputs: list[list[int]]
    eos: int | None = None
    refusal: PagedServeError | None = None
    fails_after: int | None = None
    per_delta: int = 1
    burst: int = 1
    pause_s: float = 0.0  # before each delta
    ready: bool = True
    failure: PagedServeError | None = None
    answers: bool = True  # calls of utilities
    limits: Welcome = LIMITS
    stats: SchedulerStats = STATS
    requests: list[FakeRequest] = field(default_factory=list)
    adapters: list[Adapter | None] = field(default_factory=list)  # of the requests
    pooled: list[FakePooling] = field(default_factory=list)
    refusals: list[PagedServeError] = field(default_factory=list)  # of pooling requests, in order

    def pool(self, prompt_token_ids: Sequence[int], pooling_params: PoolingParams, **terms: object) -> FakePooling:
        size = {"embedding_size": self.limits.embedding_size, "num_labels": self.limits.num_labels}
        prompt = list(prompt_token_ids)
        self.pooled.append(FakePooling(prompt, pooling_params, terms, size, self.refusals, self.pause_s))
        return self.pooled[-1]

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        timeout_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> FakeRequest:
        self.adapters.append(adapter)
        request = FakeRequest(
            list(prompt_token_ids),
            sampling_params,
            priority,
            cache_salt,
            tenant,
            weight,
            timeout_s,
            self.outputs,
            self.eos,
            self.refusal,
            self.fails_after,
            self.per_delta,
            self.burst,
            self.pause_s,
        )
        self.requests.append(request)
        return request

    async def utility(self, utility: Utility) -> bytes:
        assert utility is Utility.STATS
        if not self.answers:
            await asyncio.Future()
        return msgspec.json.encode(msgspec.structs.asdict(self.stats))
