"""One answer that outlives connections: a separate task computes it, and it is stored for a client that returns."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Protocol

from paged_serve.protocol.errors import PagedServeError, RequestAborted

from ..exchange.errors import HttpError
from .keys import KeyedRequest

log = logging.getLogger(__name__)

EVENT_OVERHEAD_BYTES = 64  # of a bytes object and its place in the list
YIELD_EVERY_BATCHES = 64  # a reader that returns after a while gets thousands of tokens at once


class StorageLimits(Protocol):
    """Limits how much is stored, and for how long."""

    def grew(self, answer: "StoredAnswer", num_bytes: int) -> None: ...
    def has_room(self, answer: "StoredAnswer") -> bool: ...
    def reader_arrived(self, answer: "StoredAnswer") -> None: ...
    def reader_left(self, answer: "StoredAnswer") -> None: ...


class StoredAnswer:
    """Events, numbered from 1, for one reader at a time: the latest.

    Events [1, first] are not stored (any more), [first + 1, last] are; the reader has taken events up to `taken`.
    """

    def __init__(self, limits: StorageLimits, request: KeyedRequest, answer_id: str, *, streams: bool, first: int = 0):
        """`first`: the last event that the client has, when it returns to a frontend that never had the answer."""
        self.streams = streams
        self.request = request
        self.answer_id = answer_id
        self.first = first
        self.last = 0
        self.taken = first
        self.size = 0
        self.done = False
        self.error: Exception | None = None
        self._limits = limits
        self._events: list[bytes] = []
        self._reader: object | None = None
        self._grown = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error after which it may be computed again."""
        return self.error is not None and not isinstance(self.error, RequestAborted)

    @property
    def has_reader(self) -> bool:
        return self._reader is not None

    @property
    def all_taken(self) -> bool:
        return self.taken >= self.last

    def make(self, batches: AsyncGenerator[list[bytes], None], admitted: ExitStack) -> None:
        """Start computing; the caller reads at once. `admitted` is closed when the answer is complete or given up."""

        def ended(task: "asyncio.Task[None]") -> None:
            admitted.close()
            self._task = None  # a cancelled task keeps its frames, which keep the answer
            self.done = True
            self._grown.set()

        self._task = asyncio.create_task(self._make(batches))
        self._task.add_done_callback(ended)

    def give_up(self, error: Exception) -> None:
        """Stop computing the answer, and end its reader with `error`."""
        if not self.done:
            self.error = error
        if self._task is not None:
            self._task.cancel()
        self._reader = None
        self._grown.set()

    async def events_after(self, number: int) -> AsyncGenerator[bytes, None]:
        """The events after `number`, joined when several are there. A later reader ends this one with HttpError 409."""
        self._reader = reader = object()
        self.taken = number
        self._grown.set()
        self._room.set()
        self._limits.reader_arrived(self)
        try:
            while self._reader is reader:
                if not self.all_taken:
                    events = b"".join(self._events[self.taken - self.first :])
                    self.taken = self.last
                    self._room.set()
                    yield events
                elif self.error is not None:
                    raise self.error
                elif self.done:
                    self._check_end()
                    return
                else:
                    self._grown.clear()
                    await self._grown.wait()
            raise self.error or HttpError(409, "Another connection has taken over this answer.")
        finally:
            if self._reader is reader:
                self._reader = None
                self._room.set()
                self._limits.reader_left(self)

    def drop_taken(self, enough_bytes: int) -> None:
        """Drop the oldest events that the reader has taken, until `enough_bytes` are free."""
        count = dropped = 0
        while dropped < enough_bytes and self.first + count < min(self.taken, self.last):
            dropped += len(self._events[count]) + EVENT_OVERHEAD_BYTES
            count += 1
        del self._events[:count]
        self.first += count
        self._grow(-dropped)

    def _check_end(self) -> None:
        if self.taken > self.last:
            raise HttpError(400, f"Last-Event-ID names event {self.taken}; this answer has {self.last}.")

    async def _make(self, batches: AsyncGenerator[list[bytes], None]) -> None:
        try:
            async with aclosing(batches):
                await self._append_all(batches)
        except Exception as error:  # raised to readers, now or when they reconnect
            self.error = error
            if not self.has_reader and not isinstance(error, (HttpError, PagedServeError)):
                log.error("failed answer=%s: %s", self.answer_id, error, exc_info=error)
            error.__traceback__ = None  # its frames hold this answer

    async def _append_all(self, batches: AsyncGenerator[list[bytes], None]) -> None:
        steps = 0
        async for batch in batches:
            self._append(batch)
            if (steps := steps + 1) % YIELD_EVERY_BATCHES == 0:
                await asyncio.sleep(0)
            while not self._limits.has_room(self):
                self._room.clear()
                await self._room.wait()

    def _append(self, batch: list[bytes]) -> None:
        for event in batch:
            self.last += 1
            if self.last > self.first:
                self._events.append(event)
                self._grow(len(event) + EVENT_OVERHEAD_BYTES)
        self._grown.set()

    def _grow(self, num_bytes: int) -> None:
        self.size += num_bytes
        self._limits.grew(self, num_bytes)
