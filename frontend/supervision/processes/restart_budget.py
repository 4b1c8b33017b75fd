"""Limits restarts: a process that keeps dying ends the server instead."""

from collections import deque


class RestartBudget:
    """At most `limit` restarts within any `window_s` seconds. Time comes in as an argument."""

    def __init__(self, limit: int, window_s: float):
        self._limit = limit
        self._window_s = window_s
        self._spent: deque[tuple[float, str]] = deque()  # when, and for which loss

    def spend(self, loss: str, now: float) -> str:
        """Take one restart for `loss`. Returns "", or why the server must end when the window is full."""
        while self._spent and self._spent[0][0] <= now - self._window_s:
            self._spent.popleft()
        if len(self._spent) < self._limit:
            self._spent.append((now, loss))
            return ""
        first = self._spent[0][1] if self._spent else loss
        losses = loss if loss == first else f"{loss}; the first loss was: {first}"
        return f"gave up after {self._limit} restarts in {self._window_s:.0f} s: {losses}"

    def refund(self, count: int) -> None:
        """Give the last `count` restarts back: their cause has been removed."""
        for _ in range(min(count, len(self._spent))):
            self._spent.pop()
