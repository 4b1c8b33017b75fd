"""Runs many prompts through one client: a bounded number in flight, results in the order of the prompts."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..client.streams.request_streams import RequestStreams
from ..client.sync_client import Client
from ..client.sync_request import Request
from .model_text import ModelText
from .outputs import OutputBuilder, RequestOutput, in_form, keep_best
from .prompts import Prompt

WAIT_S = 0.25


@dataclass(slots=True)
class Job:
    """One prompt of a batch, ready for the engine."""

    number: int
    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    adapter: Adapter | None = None


@dataclass(slots=True)
class _Running:
    job: Job
    request: Request
    streams: RequestStreams
    builder: OutputBuilder


class Batch:
    """Runs jobs. At most `max_in_flight` sequences are with the engine at once; later prompts are not tokenized yet."""

    def __init__(self, client: Client, text: ModelText, max_in_flight: int, on_done: Callable[[RequestOutput], None]):
        self._client = client
        self._text = text
        self._max_in_flight = max_in_flight
        self._on_done = on_done
        self._in_flight = 0  # sequences
        self._running: dict[RequestStreams, _Running] = {}
        self._with_output: deque[RequestStreams] = deque()
        self._refused: deque[Job] = deque()  # because the engine was full
        self._not_before = 0.0

    def run(self, jobs: Iterable[Job]) -> dict[int, RequestOutput]:
        """Outputs by job number. If this ends early, for any reason, all running requests are aborted."""
        results: dict[int, RequestOutput] = {}
        source = iter(jobs)
        try:
            self._fill(source)
            while self._running or self._refused:
                self._client.wait(WAIT_S if not self._with_output else 0.0)
                self._read(results)
                self._fill(source)
        finally:
            for running in self._running.values():
                running.request.abort()
        return results

    def _fill(self, source: Iterator[Job]) -> None:
        while self._in_flight < self._max_in_flight and time.monotonic() >= self._not_before:
            job = self._refused.popleft() if self._refused else next(source, None)
            if job is None:
                return
            self._submit(job)

    def _submit(self, job: Job) -> None:
        prompt = job.prompt
        ids = self._text.token_ids(prompt)
        params = self._text.params_for(prompt, ids, job.params)
        builder = OutputBuilder(self._text.tokenizer, prompt, ids, params)
        request = self._client.submit(
            ids,
            params,
            priority=job.priority,
            cache_salt=prompt.cache_salt,
            adapter=job.adapter,
            on_output=self._with_output.append,
        )
        self._running[request.streams] = _Running(job, request, request.streams, builder)
        self._in_flight += params.n
        if request.done:  # refused at once; no delta will come
            self._with_output.append(request.streams)

    def _read(self, results: dict[int, RequestOutput]) -> None:
        while self._with_output:
            running = self._running.get(self._with_output.popleft())
            if running is None:
                continue
            while (delta := running.request.take()) is not None:
                if running.builder.push(delta):
                    running.request.abort(delta.index, FinishReason.STOP)
            if running.request.done:
                self._end(running, results)

    def _end(self, running: _Running, results: dict[int, RequestOutput]) -> None:
        del self._running[running.streams]
        self._in_flight -= len(running.builder.output.outputs)
        try:
            running.request.check()
        except Overloaded as full:
            if full.draining:
                raise
            self._refused.append(running.job)
            self._not_before = time.monotonic() + full.pause_s
            return
        output = running.builder.output
        output.request_id = str(running.job.number)
        keep_best(output, running.job.params)
        results[running.job.number] = in_form(output, running.job.params)
        self._on_done(output)
