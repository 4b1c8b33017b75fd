"""Limits the sequences of AsyncLLM that are with the engine at once, and orders the waiting requests."""

import asyncio
import heapq
import sys
from itertools import count


class InFlightLimit:
    """A request enters while fewer than `max_sequences` are in flight; others wait by priority, then by arrival."""

    def __init__(self, max_sequences: int):
        self._max_sequences = max_sequences
        self._num_sequences = 0
        self._arrivals = count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []  # priority, arrival, sequences, entry

    def entry(self, num_sequences: int, priority: int) -> "asyncio.Future[bool]":
        """A future that becomes True once the request may enter; the request must then `leave`.

        A caller that stops waiting cancels it or sets it to False.
        """
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
