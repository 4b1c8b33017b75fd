"""Limits the connections of one frontend; above the limit the one idle for longest is closed."""

from typing import Protocol

MAX_REFUSED = 64  # connections being refused at the same time; further ones are closed without an answer


class Connection(Protocol):
    def leave(self) -> None:
        """Close the connection, which is idle."""


class ConnectionLimit:
    """Counts connections. `limit` None: unlimited."""

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.is_closed = False  # no connection is accepted any more
        self.num_held = 0
        self.num_refused = 0  # connections whose peers have yet to read the refusal
        self._idle: dict[Connection, None] = {}  # idle connections, the longest idle first

    def take(self) -> bool:
        """Take a place for a new connection, if need be by closing an idle one. False when all are busy."""
        if self.limit is not None and self.num_held >= self.limit:
            longest_idle = next(iter(self._idle), None)
            if longest_idle is None:
                return False
            self._idle.pop(longest_idle)
            longest_idle.leave()
        self.num_held += 1
        return True

    def give_back(self, connection: Connection) -> None:
        self.num_held -= 1
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
