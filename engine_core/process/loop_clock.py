"""Measures how late an iteration of the core's loop starts: time lost to a stopped process or a busy machine."""

TIMER_S = 0.1  # tolerance of a sleep; beyond it the process was not scheduled


class LoopClock:
    """Times are monotonic."""

    def __init__(self, now: float) -> None:
        self._iteration_began_s = now

    def begin_iteration(self, now: float, planned_sleep_s: float) -> float:
        """Seconds since the previous iteration beyond the planned sleep and TIMER_S; 0 if there are none."""
        lost_s = now - self._iteration_began_s - planned_sleep_s - TIMER_S
        self._iteration_began_s = now
        return max(0.0, lost_s)
