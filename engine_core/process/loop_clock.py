"""How much later than planned the core's loop goes round: time that a halt or the machine took, and no peer."""

TIMER_S = 0.1  # a sleep may take so much longer; beyond that the machine had no time for us


class LoopClock:
    """Times are monotonic."""

    def __init__(self, now: float) -> None:
        self._turned_s = now

    def turn(self, now: float, planned_sleep_s: float) -> float:
        """A turn begins; returns the seconds since the one before without a turn, beyond the planned sleep."""
        lost_s = now - self._turned_s - planned_sleep_s - TIMER_S
        self._turned_s = now
        return max(0.0, lost_s)
