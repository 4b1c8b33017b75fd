"""How many connections one frontend holds, and which is closed when there are too many: the one idle for longest."""

from typing import Protocol

MAX_REFUSED = 64  # connections that are sent a refusal at the same time; more are closed without one


class Connection(Protocol):
    def leave(self) -> None:
        """Close; nothing is being asked or answered."""


class ConnectionLimit:
    """Counts connections. `limit` None: as many as come."""

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.is_closed = False  # no connection is accepted any more
        self.num_held = 0
        self.num_refused = 0  # of those that wait for their refusal to be read
        self._idle: dict[Connection, None] = {}  # between two requests; the longest idle first

    def take(self) -> bool:
        """A place for a new connection, if need be an idle one's. False: all are busy."""
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
