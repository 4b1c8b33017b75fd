"""Timers of a client's link: heartbeats, probes, and detection of a silent core."""

from dataclasses import dataclass, field

HEARTBEAT_S = 1.0  # between our signs of life; the core drops a client after 10 s without one
PROBE_AFTER_S = 0.6  # the core speaks every 250 ms; after this silence Hello is sent again, as often
UNPLUGGED_AFTER_S = 0.1  # of silence on a link that takes no message
SILENT_AFTER_S = 2.0  # then the engine counts as away
LAPSE_S = 5.0  # after a sleep of so long, half the core's lease, the client asks at once whether it is still known


@dataclass(slots=True)
class LinkClock:
    """All times in seconds of one monotonic clock; `start` is its first reading."""

    start: float
    hello_is_due: bool = True
    _last_hello: float = field(init=False)
    _last_beat: float = field(init=False)
    _last_heard: float = field(init=False)
    _last_tick: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_hello = self._last_beat = self._last_heard = self._last_tick = self.start

    def heard(self, now: float) -> None:
        self._last_heard = now

    def silence(self, now: float) -> float:
        """Seconds since the core's last message."""
        return now - self._last_heard

    def tick(self, now: float) -> bool:
        """Called several times per second; False if this process itself was stopped for too long."""
        slept, self._last_tick = now - self._last_tick, now
        if slept > PROBE_AFTER_S:  # this process may have been silent itself
            self._last_heard = max(self._last_heard, now - PROBE_AFTER_S / 2)
        return slept <= LAPSE_S

    def ask(self, now: float) -> None:
        """Send Hello at once."""
        self.hello_is_due, self._last_hello = True, now

    def ask_again(self, now: float, ready: bool) -> None:
        """Send Hello again when it is due."""
        if (not ready or self.silence(now) > PROBE_AFTER_S) and now - self._last_hello >= PROBE_AFTER_S:
            self.ask(now)

    def beat_is_due(self, now: float) -> bool:
        """True at most once every HEARTBEAT_S."""
        due = now - self._last_beat >= HEARTBEAT_S
        if due:
            self._last_beat = now
        return due
