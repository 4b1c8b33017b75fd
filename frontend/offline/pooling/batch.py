"""Turns many prompts into vectors: a bounded number in flight, vectors in the order of the prompts."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.pooling_params import Pooled

from ...client.pooling import PoolingRequest
from ...client.sync_client import Client
from .outputs import Answered
from .prompts import PoolingJob


@dataclass(slots=True)
class _Running:
    job: PoolingJob
    request: PoolingRequest


class PoolingBatch:
    """At most `max_in_flight` prompts are with the engine at once; the rest are not tokenized yet."""

    def __init__(self, client: Client, max_in_flight: int):
        self._client = client
        self._max_in_flight = max_in_flight
        self._running: deque[_Running] = deque()

    def run(self, jobs: Iterable[PoolingJob]) -> Iterator[Answered]:
        """Yield one vector per job. If the iteration ends early, running requests are aborted.

        Raises the exceptions of PoolingRequest.result.
        """
        source = iter(jobs)
        try:
            self._fill(source)
            while self._running:
                running = self._running[0]
                pooled = self._result(running)
                self._running.popleft()
                self._fill(source)
                yield Answered(running.job, pooled, running.request.answer)
        finally:
            for running in self._running:
                running.request.abort()

    def _result(self, running: _Running) -> Pooled:
        """The vector; a job that the engine had no room for is submitted again."""
        while True:
            try:
                return running.request.result()
            except Overloaded as full:
                if full.draining:
                    raise
                self._client.wait(full.pause_s)
                running.request = self._submit(running.job)

    def _fill(self, source: Iterator[PoolingJob]) -> None:
        while len(self._running) < self._max_in_flight and (job := next(source, None)) is not None:
            self._running.append(_Running(job, self._submit(job)))

    def _submit(self, job: PoolingJob) -> PoolingRequest:
        return self._client.pool(job.token_ids, job.params, cache_salt=job.cache_salt, adapter=job.adapter)
