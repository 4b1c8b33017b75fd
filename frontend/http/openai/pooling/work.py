"""Runs the prompts of one request, from submission until every vector has come or the request is dropped."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from paged_serve.protocol.errors import Overloaded, PagedServeError, RequestAborted, RequestExpired, RequestFailed
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason

from ....buffer_budget import Lease
from ....client.async_pooling import AsyncPoolingRequest
from ....client.request_terms import RequestTerms
from ...exchange.memory_costs import PROMPT_TOKEN_BYTES, REQUEST_BYTES, SEQUENCE_BYTES
from ...service import RequestInProgress, Service
from .answers import PoolingUsage


@dataclass(slots=True)
class PoolingPrompt:
    """One prompt of a request, ready for the engine."""

    token_ids: "array[int]"
    params: PoolingParams
    warnings: Sequence[str] = ()

    def num_numbers(self, service: Service) -> int:
        """The size of its vector, in numbers."""
        limits, params = service.engine.limits, self.params
        labels = len(params.returned_token_ids) or limits.num_labels
        is_embedding = params.task in ("embed", "token_embed")
        columns = params.dimensions or limits.embedding_size if is_embedding else labels
        return columns * (len(self.token_ids) if params.task.startswith("token_") else 1)


class PoolingWork:
    """Call `submit`, iterate `vectors`, and `close` whatever happens; this aborts what is still running.

    Two prompts per row of the engine are in flight at once: more would not speed it up, but delay other requests.
    """

    def __init__(
        self,
        service: Service,
        prompts: list[PoolingPrompt],
        terms: RequestTerms,
        request_id: str,
        arrival: float,
        lease: Lease,
        number_bytes: int,
        kept_bytes: int,
    ):
        """`number_bytes`: bytes of the answer per number of a vector; `kept_bytes`: bytes of the request that stay
        until it is answered. Takes over the lease.

        Raises Overloaded, or InvalidRequest for a request that never fits.
        """
        self._service, self._prompts, self._terms = service, prompts, terms
        self._request_id, self._arrival = request_id, arrival
        self._under_way: deque[AsyncPoolingRequest] = deque()
        self._num_submitted = self._num_done = 0
        self.answer_id = ""
        self._failed = self._is_aborted = False
        lease.resize(
            REQUEST_BYTES
            + kept_bytes
            + sum(SEQUENCE_BYTES + len(prompt.token_ids) * PROMPT_TOKEN_BYTES for prompt in prompts)
            + number_bytes * sum(prompt.num_numbers(service) for prompt in prompts),
            "This answer",
        )

    async def submit(self) -> None:
        """Submit the first prompts; the others follow as these finish."""
        self._service.in_progress.add(self)
        for _ in range(min(len(self._prompts), 2 * self._service.engine.limits.max_num_seqs)):
            if self._num_submitted:
                await asyncio.sleep(0)
            self._submit_next()

    async def vectors(self) -> AsyncIterator[Pooled]:
        """Yield one vector per prompt, in the order of the prompts.

        Raises InvalidRequest, Overloaded or RequestExpired when the engine refuses a prompt, EngineDead when it
        cannot continue, and RequestFailed when it drops a prompt.
        """
        try:
            while self._under_way:
                pooled = await self._next()
                if self._num_submitted < len(self._prompts):
                    self._submit_next()
                yield pooled
        except PagedServeError as error:
            if self._is_aborted:
                raise RequestAborted from error
            self._failed = True
            if isinstance(error, RequestFailed):
                self._service.metrics.failed(str(error))
            raise

    def usage(self) -> PoolingUsage:
        num_tokens = sum(len(prompt.token_ids) for prompt in self._prompts)
        return PoolingUsage(
            prompt_tokens=num_tokens, total_tokens=num_tokens, completion_tokens=0, prompt_tokens_details=None
        )

    def progress(self) -> RequestInProgress:
        return RequestInProgress(
            id=self._request_id,
            answer_id=self.answer_id,
            status="running" if self._num_done else "waiting",
            key=self._terms.tenant,
            frontend=self._service.index,
            age_s=round(time.monotonic() - self._arrival, 3),
            priority=self._terms.priority,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in self._prompts),
            output_tokens=0,
            num_choices=len(self._prompts),
            num_unfinished=len(self._prompts) - self._num_done,
        )

    def abort(self) -> None:
        """End the request, as its operator wants: `vectors` raises RequestAborted."""
        self._is_aborted = True
        for request in self._under_way:
            request.abort()

    def close(self) -> None:
        """Abort what is still running, if anything."""
        self._service.in_progress.discard(self)
        for request in self._under_way:
            request.abort()
        if self._under_way and not self._failed:  # the client has disconnected
            self._service.metrics.ended(FinishReason.ABORT, len(self._under_way))
        self._under_way.clear()

    def _submit_next(self) -> None:
        prompt = self._prompts[self._num_submitted]
        self._service.metrics.submitted(len(prompt.token_ids), 1, None)
        self._num_submitted += 1
        self._under_way.append(self._pool(prompt))

    def _pool(self, prompt: PoolingPrompt) -> AsyncPoolingRequest:
        terms = self._terms
        return self._service.engine.pool(
            prompt.token_ids,
            prompt.params,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant,
            weight=terms.weight,
            timeout_s=self._time_left(),
            adapter=terms.adapter,
        )

    async def _next(self) -> Pooled:
        """The vector of the prompt that was submitted first. If the engine is full, it is submitted again once the
        engine has computed others of this request."""
        while True:
            if self._is_aborted:
                raise RequestAborted
            request = self._under_way[0]
            try:
                pooled = await request
            except Overloaded as full:
                if full.draining or not self._num_done:
                    raise
                await asyncio.sleep(full.pause_s)
                self._under_way[0] = self._pool(self._prompts[self._num_done])
                continue
            self._under_way.popleft()
            self._num_done += 1
            seconds = time.monotonic() - self._arrival
            self._service.metrics.finished(FinishReason.STOP, 0, seconds, seconds, request.answer.times)
            return pooled

    def _time_left(self) -> float:
        """Seconds left of the timeout, which counts from the arrival; 0: no timeout. Raises RequestExpired."""
        timeout_s = self._terms.timeout_s
        left = timeout_s - (time.monotonic() - self._arrival)
        if timeout_s and left <= 0:
            raise RequestExpired(f"timeout={timeout_s:g}: not all vectors were ready in time; raise timeout")
        return left if timeout_s else 0.0
