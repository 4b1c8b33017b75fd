"""The requests of AsyncLLM: their ids, and how many of their sequences are with the engine at once, in which order."""

import asyncio
import contextlib
import heapq
import sys
from collections.abc import Container, Iterator
from itertools import count
from typing import Any

from paged_serve.protocol.errors import InvalidRequest, Overloaded

from ..client.request_terms import check_priority, instance_of


def unused_id(request_id: Any, used: Container[str], numbers: Iterator[str]) -> str:
    """The given id, or else the next unused number. Raises InvalidRequest for an id in use."""
    if request_id is None:
        return next(number for number in numbers if number not in used)
    given = instance_of(str, request_id, "request_id")
    if given in used:
        raise InvalidRequest(f"request_id {given[:200]!r} belongs to a running request; choose another", "request_id")
    return given


class InFlightLimit:
    """A request enters while fewer than `max_sequences` are in flight; others wait by priority, then by arrival."""

    def __init__(self, max_sequences: int):
        self._max_sequences = max_sequences
        self._num_sequences = 0
        self._arrivals = count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []  # priority, arrival, sequences, entry

    def entry(self, num_sequences: int, priority: int) -> "asyncio.Future[bool]":
        """A future that becomes True once the request may enter; the request must then `leave`.

        A caller that stops waiting cancels it or sets it to False. Raises InvalidRequest for a priority that cannot be
        compared with those of other requests.
        """
        check_priority(priority)
        entry: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), num_sequences, entry))
        self._fill()
        return entry

    def leave(self, num_sequences: int) -> None:
        """`num_sequences` is the number with which the request entered."""
        self._num_sequences -= num_sequences
        self._fill()

    def lift(self) -> None:
        """Let all requests enter, because the client is closed and refuses them."""
        self._max_sequences = sys.maxsize
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._num_sequences < self._max_sequences:
            _, _, num_sequences, entry = heapq.heappop(self._waiting)
            if not entry.done():
                self._num_sequences += num_sequences
                entry.set_result(True)


class Entry:
    """One request's entry under a limit. `abort` may be called at any time; call `end` whatever happens."""

    def __init__(self, limit: InFlightLimit):
        self._limit = limit
        self._num_sequences = 0
        self._may_enter: asyncio.Future[bool] | None = None
        self._aborted = asyncio.Event()

    @property
    def is_aborted(self) -> bool:
        return self._aborted.is_set()

    async def wait(self, num_sequences: int, priority: int) -> bool:
        """Wait until the request may be submitted to the engine. Returns False if it was aborted first."""
        self._num_sequences = num_sequences
        self._may_enter = self._limit.entry(num_sequences, priority)
        if self.is_aborted:
            self._refuse()
        return await self._may_enter and not self.is_aborted

    async def pause(self, full: Overloaded) -> None:
        """Wait before the request is submitted again; an abort ends the pause. Raises `full` if the server drains.

        The engine was full of other clients' requests and has computed nothing of this one.
        """
        if full.draining:
            raise full
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._aborted.wait(), full.pause_s)

    def abort(self) -> None:
        self._aborted.set()
        self._refuse()

    def end(self) -> None:
        """The request has ended, or its caller no longer wants its outputs."""
        self.abort()
        entered = self._may_enter
        if entered is not None and not entered.cancelled() and entered.result():
            self._limit.leave(self._num_sequences)

    def _refuse(self) -> None:
        if self._may_enter is not None and not self._may_enter.done():
            self._may_enter.set_result(False)
