"""Counts the bytes that wait in connections: incoming bodies, and answers that a slow peer has yet to read."""

import time
from collections.abc import Callable
from typing import Protocol

from ...buffer_budget import BufferBudget


class Connection(Protocol):
    def shed(self) -> None:
        """Free the bytes held by ending the request."""


class ConnectionBuffers:
    """A pool of the budget. The connection with the most bytes times seconds held is ended first."""

    def __init__(self, budget: BufferBudget, clock: Callable[[], float] = time.monotonic):
        self.num_bytes = 0
        self._budget = budget
        self._clock = clock
        self._held: dict[Connection, tuple[int, float]] = {}  # bytes, and since when there are any
        budget.pools.append(self)

    def hold(self, connection: Connection, num_bytes: int) -> bool:
        """Set the total bytes that `connection` holds. False, and no change, when there is no room."""
        before, since = self._held.get(connection, (0, 0.0))
        growth = num_bytes - before
        if growth > 0 and not self._budget.has_room(growth):
            return False
        if num_bytes:
            self._held[connection] = (num_bytes, since or self._clock())
        else:
            self._held.pop(connection, None)
        self.num_bytes += growth
        return True

    def shed(self, num_bytes: int) -> None:
        now = self._clock()
        order = sorted(self._held.items(), key=lambda item: -item[1][0] * (now - item[1][1]))
        for connection, (held, _) in order:
            if num_bytes <= 0:
                return
            num_bytes -= held
            connection.shed()
            self.hold(connection, 0)
