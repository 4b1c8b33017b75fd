"""The requests of AsyncLLM: their ids, and how many of their sequences are with the engine at once, in which order."""

import asyncio
import heapq
import sys
from collections.abc import Container, Iterator
from itertools import count
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

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
