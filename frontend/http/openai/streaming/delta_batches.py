"""Reads the deltas of one HTTP request's engine requests as they arrive, in batches of limited size."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

from ....client.async_request import AsyncRequest
from ....client.streams.deltas import SequenceDelta

MAX_BATCH_TOKENS = 128  # with twenty logprobs each they take 10 ms of the event loop

DeltaBatch: TypeAlias = list[tuple[int, SequenceDelta]]  # (number of the engine request, its delta)


class DeltaBatches:
    """The deltas of `requests`, all of which are submitted before `read`. Call `close` whatever happens."""

    def __init__(self, requests: Sequence[AsyncRequest]):
        self._requests = requests
        self._pumps: list[asyncio.Task[None]] = []

    def read(self) -> AsyncGenerator[DeltaBatch, None]:
        """Batches until all requests have ended. Raises the error of a request that fails."""
        return self._of_one() if len(self._requests) == 1 else self._of_many()

    def close(self) -> None:
        """End the tasks that wait for deltas."""
        for pump in self._pumps:
            pump.cancel()

    async def _of_one(self) -> AsyncGenerator[DeltaBatch, None]:
        request = self._requests[0]
        with contextlib.suppress(StopAsyncIteration):
            while True:
                delta: SequenceDelta | None = await request.__anext__()
                batch, size = [], 0
                while delta is not None:
                    batch.append((0, delta))
                    size += max(1, len(delta.token_ids))
                    delta = request.take() if size < MAX_BATCH_TOKENS else None
                yield batch
                if size >= MAX_BATCH_TOKENS:
                    await asyncio.sleep(0)

    async def _of_many(self) -> AsyncGenerator[DeltaBatch, None]:
        """Deltas of several requests. Those that do not fit the queue wait packed in the client, which counts them."""
        queue: asyncio.Queue[tuple[int, SequenceDelta] | Exception | None] = asyncio.Queue(len(self._requests))

        async def pump(number: int, request: AsyncRequest) -> None:
            ended: Exception | None = None
            try:
                with contextlib.suppress(StopAsyncIteration):
                    while True:
                        await queue.put((number, await request.__anext__()))
            except Exception as error:  # raised to the reader
                ended = error
            await queue.put(ended)

        self._pumps = [asyncio.create_task(pump(i, request)) for i, request in enumerate(self._requests)]
        num_running = len(self._pumps)
        while num_running:
            batch, size, item = DeltaBatch(), 0, await queue.get()
            while True:
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_running -= 1
                else:
                    batch.append(item)
                    size += max(1, len(item[1].token_ids))
                if queue.empty() or size >= MAX_BATCH_TOKENS:
                    break
                item = queue.get_nowait()
            yield batch
            if size >= MAX_BATCH_TOKENS:
                await asyncio.sleep(0)
