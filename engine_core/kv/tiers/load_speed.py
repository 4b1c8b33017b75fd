"""How long a load takes, from earlier loads, and whether it is worth waiting for."""

ASSUMED_BYTES_PER_S = 1e9  # before the first load
ASSUMED_WAIT_S = 0.002  # of a load of any size
KEEP = 0.8  # a load counts half after 3 more
RETRY = 1.02  # each load that was not worth it makes the next one this much more attractive: a tier may become quick


class LoadSpeed:
    """A decaying average of bytes per second."""

    def __init__(self) -> None:
        self._bytes = ASSUMED_BYTES_PER_S * 0.01
        self._seconds = 0.01

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """Record a load that took `seconds` from its message to the last rank's answer."""
        self._bytes = KEEP * self._bytes + num_bytes
        self._seconds = KEEP * self._seconds + max(0.0, seconds)

    def is_worth(self, num_bytes: int, compute_s: float) -> bool:
        """Whether loading is expected to take less time than `compute_s`; 0: not known, so yes."""
        if not compute_s or ASSUMED_WAIT_S + num_bytes / self.bytes_per_s < compute_s:
            return True
        if compute_s > ASSUMED_WAIT_S:  # else no speed would make it worth it
            self._seconds /= RETRY
        return False
