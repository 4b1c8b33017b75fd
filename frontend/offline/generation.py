"""One request of AsyncLLM from its arrival to its last output."""

import asyncio
import contextlib

from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..client.async_client import AsyncClient, AsyncRequest
from ..client.streams.deltas import SequenceDelta
from .in_flight import InFlightLimit
from .outputs import OutputBuilder, RequestOutput
from .prompts import Prompt

MIN_RETRY_S, MAX_RETRY_S = 0.05, 5.0


class Generation:
    """`enter`, then `submit`, then `next` until an output is finished; `end` in any case. `abort` at any time."""

    def __init__(self, request_id: str, client: AsyncClient, limit: InFlightLimit):
        self.request_id = request_id
        self._client = client
        self._limit = limit
        self._entry: asyncio.Future[bool] | None = None
        self._num_sequences = 0
        self._request: AsyncRequest | None = None
        self._aborted = asyncio.Event()

    async def enter(self, num_sequences: int, priority: int) -> bool:
        """Wait until the engine can be given it; False when it was aborted before."""
        self._num_sequences = num_sequences
        self._entry = self._limit.entry(num_sequences, priority)
        if self._aborted.is_set() and not self._entry.done():
            self._entry.set_result(False)
        return await self._entry and not self._aborted.is_set()

    def submit(self, prompt: Prompt, params: SamplingParams, priority: int, builder: OutputBuilder) -> None:
        """Start it, unless it was aborted; `builder` has the prompt's tokens."""
        self._prompt, self._params, self._priority, self._builder = prompt, params, priority, builder
        builder.output.request_id = self.request_id
        if not self._aborted.is_set():
            self._request = self._client.submit(
                builder.output.prompt_token_ids, params, priority=priority, cache_salt=prompt.cache_salt
            )

    async def next(self) -> RequestOutput:
        """All that there is so far, once there is more. Raises what ended the request, if it was an error."""
        output = self._builder.output
        while (request := self._request) is not None:
            try:
                delta = await request.__anext__()
            except StopAsyncIteration:
                assert output.finished
                return output
            except Overloaded as full:
                await self._submit_later(full)
                continue
            self._push(request, delta)
            while (more := request.take()) is not None:
                self._push(request, more)
            if (
                not output.finished
            ):  # what ended by a stop string is finished when the engine confirms it, with its times
                return self._builder.snapshot()
        self._builder.abort()
        return output

    def abort(self) -> None:
        """The output that it has becomes its last. Harmless when it has ended."""
        self._aborted.set()
        if self._entry is not None and not self._entry.done():
            self._entry.set_result(False)
        if self._request is not None:
            self._request.abort()

    def end(self) -> None:
        """Its reader has left or has all."""
        self.abort()
        entry = self._entry
        if entry is not None and not entry.cancelled() and entry.result():
            self._limit.leave(self._num_sequences)

    def _push(self, request: AsyncRequest, delta: SequenceDelta) -> None:
        if self._builder.push(delta):
            request.abort(delta.index, FinishReason.STOP)

    async def _submit_later(self, full: Overloaded) -> None:
        """The engine was full, of other clients' requests: nothing of it was computed."""
        if full.draining:
            raise full
        self._request = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._aborted.wait(), min(max(full.retry_after_s, MIN_RETRY_S), MAX_RETRY_S))
        self.submit(self._prompt, self._params, self._priority, self._builder)
