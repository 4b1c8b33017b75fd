"""Computes one response without a connection, and streams it to any number of readers.

The events of a response have the same bytes each time they are made. So the request is stored: when a process ends, the
next one computes the response again from the beginning and skips the events that are stored already.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing
from typing import Literal, NamedTuple, Protocol

from paged_serve.protocol.errors import EngineDead, Overloaded, PagedServeError

from ..exchange.errors import HttpError
from .database import Items, Row

log = logging.getLogger(__name__)

FLUSH_BYTES = 64 << 10  # events buffered before they are stored
STORE_AGAIN_S = 1.0  # after the file could not be written


class Ended(NamedTuple):
    """A finished response in JSON, with the items of its output."""

    response: bytes
    items: Items


class Work(Protocol):
    """Generates the response."""

    @property
    def ended(self) -> Ended | None:
        """The finished response, once the events have ended."""

    def events(self) -> AsyncGenerator[list[bytes], None]:
        """All events. May be called again after Overloaded."""

    def given_up(self, error: PagedServeError | None, num_kept: int) -> tuple[Ended, list[bytes]]:
        """The incomplete response, and the events that follow the first `num_kept`; `error` None: it was cancelled."""


class Storage(Protocol):
    """Methods raise HttpError 503 when the file fails."""

    async def append_events(self, row: Row, first: int, events: Sequence[bytes]) -> None: ...
    async def finish(self, row: Row, ended: Ended, first: int, events: Sequence[bytes]) -> None: ...
    async def events(self, row: Row, after: int) -> list[bytes]: ...


class BackgroundRun:
    """`num_stored`: number of events stored by an earlier process. `admitted` is closed at the end."""

    def __init__(self, storage: Storage, row: Row, work: Work, admitted: ExitStack, num_stored: int = 0):
        self.row = row
        self.status: Literal["queued", "in_progress"] = "queued"
        self._storage, self._work, self._admitted = storage, work, admitted
        self._num_stored = num_stored
        self._num_made = 0
        self._waiting: list[bytes] = []  # events after the stored ones
        self._num_waiting_bytes = 0
        self._grown = asyncio.Event()
        self._is_cancelled = False
        self._has_failed = False  # and its end is being stored
        self._refusal: HttpError | None = None  # why it cannot be stored now
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def _num_kept(self) -> int:
        """The events of its stream; those made again are equal."""
        return self._num_stored + len(self._waiting)

    def start(self) -> "asyncio.Task[None]":
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        return self._task

    async def cancel(self) -> None:
        """End the response with its output so far, unless it has an end already; returns once it is stored.

        Raises HttpError while it cannot be stored.
        """
        assert self._task is not None
        if self._refusal is not None:
            raise self._refusal
        if not self._is_cancelled and not self._has_failed and self._work.ended is None:
            self._is_cancelled = True
            self._task.cancel()
        await asyncio.wait({self._task})

    async def events_after(self, number: int) -> AsyncGenerator[bytes, None]:
        """The events after `number` until the response ends; those available at once are joined."""
        while True:
            if number < self._num_stored:
                events = await self._storage.events(self.row, number)
                if not events:
                    return  # deleted
            elif number < self._num_stored + len(self._waiting):
                events = self._waiting[number - self._num_stored :]
            elif self.done:
                if self._error is not None:
                    raise self._error
                return
            else:
                await self._grown.wait()
                continue
            number += len(events)
            yield b"".join(events)

    async def _run(self) -> None:
        try:
            await self._make()
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise  # the process ends
            await self._give_up(None)
        except (EngineDead, Overloaded) as error:  # this process ends too; its successor continues
            self._error = error
        except PagedServeError as error:
            self._has_failed = True
            await self._give_up(error)
        except Exception as error:  # a fault of this program; without an end, clients would ask for it forever
            log.error("failed response=%s: %s", self.row.id, error, exc_info=error)
            self._has_failed = True
            await self._give_up(EngineDead("the response could not be made"))

    async def _make(self) -> None:
        while True:
            try:
                await self._take_all()
            except Overloaded as error:  # an accepted response is not refused later
                if error.draining:
                    raise
                self._num_made = 0
                await asyncio.sleep(error.retry_after_s)
            else:
                break
        assert self._work.ended is not None
        await self._finish(self._work.ended)

    async def _take_all(self) -> None:
        async with aclosing(self._work.events()) as batches:
            async for batch in batches:
                await self._take(batch)

    async def _take(self, batch: Sequence[bytes]) -> None:
        self.status = "in_progress"
        self._push(batch)
        if self._num_waiting_bytes > FLUSH_BYTES:
            await self._until_stored(lambda: self._storage.append_events(self.row, self._num_stored, self._waiting))
            self._num_stored += len(self._waiting)
            self._waiting, self._num_waiting_bytes = [], 0

    def _push(self, batch: Sequence[bytes]) -> None:
        for event in batch:
            self._num_made += 1
            if self.row.has_events and self._num_made > self._num_kept:
                self._waiting.append(event)
                self._num_waiting_bytes += len(event)
        self._wake()

    async def _give_up(self, error: PagedServeError | None) -> None:
        ended, events = self._work.given_up(error, self._num_kept)
        self._num_made = max(self._num_made, self._num_kept)
        self._push(events)
        await self._finish(ended)

    async def _finish(self, ended: Ended) -> None:
        await self._until_stored(lambda: self._storage.finish(self.row, ended, self._num_stored, self._waiting))

    async def _until_stored(self, store: Callable[[], Awaitable[None]]) -> None:
        """The disk may be full, or the file locked by another program; an accepted response waits for both."""
        while True:
            try:
                await store()
            except HttpError as error:
                if self._refusal is None:
                    log.warning("response=%s waits to be stored: %s", self.row.id, error)
                self._refusal = error
                await asyncio.sleep(STORE_AGAIN_S)
            else:
                self._refusal = None
                return

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._admitted.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error if isinstance(error, HttpError) else EngineDead("the response could not be made")
            log.error("failed response=%s: %s", self.row.id, error, exc_info=error)
        self._wake()
