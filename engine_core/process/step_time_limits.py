"""Time limits of steps, learned from earlier steps, so that a hang is detected within a second, not in minutes.

Steps are classed by their number of tokens; each class reaches to the next power of two. Sans-I/O.
"""

import math
from dataclasses import dataclass, field

FLOOR_S = 1.0  # no step is late before this, however fast its class is
STEPS_ON_TIME = 1000  # consecutive steps after which the patience is halved
FACTOR = 8.0  # times the 99.9th percentile of the class
QUANTILE = 0.999
MIN_STEPS = 64  # steps of a class before its times are used
SHORTEST_S = 1e-4  # upper end of the first bucket
RATIO = 1.25  # between the ends of two buckets
NUM_BUCKETS = 80  # the last one starts above an hour
MAX_STEPS_COUNTED = 1 << 16  # steps of a class; beyond it all counts are halved


@dataclass(slots=True)
class Histogram:
    """A histogram of durations in seconds, with buckets of exponential width."""

    counts: list[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)
    total: int = 0

    def add(self, seconds: float) -> None:
        steps = math.log(max(seconds, SHORTEST_S) / SHORTEST_S, RATIO)
        self.counts[min(NUM_BUCKETS - 1, math.ceil(steps))] += 1
        self.total += 1
        if self.total >= MAX_STEPS_COUNTED:
            self.counts = [count // 2 for count in self.counts]
            self.total = sum(self.counts)

    def quantile_s(self, share: float) -> float:
        """The upper end of the bucket below which `share` of all durations lie."""
        missing = math.ceil(share * self.total)
        for index, count in enumerate(self.counts):
            missing -= count
            if missing <= 0:
                return SHORTEST_S * RATIO**index
        raise AssertionError("the counts do not add up to the total")


class StepTimeLimits:
    """The time limit of each step. `longest_s` applies to steps without data and bounds all other limits.

    Each late step doubles the patience, so that a slow machine does not lose its work repeatedly; STEPS_ON_TIME
    consecutive steps within their limits halve it.
    """

    def __init__(self, longest_s: float):
        self.patience = 1.0
        self._num_punctual = 0
        self.longest_s = longest_s
        self._classes: dict[int, Histogram] = {}

    def add(self, num_tokens: int, seconds: float) -> None:
        self._classes.setdefault(num_tokens.bit_length(), Histogram()).add(seconds)
        self._num_punctual += 1
        if self._num_punctual == STEPS_ON_TIME:
            self._num_punctual = 0
            self.patience = max(1.0, self.patience / 2.0)

    def usual_s(self, num_tokens: int) -> float | None:
        """The 99.9th percentile of steps with about `num_tokens` tokens, in seconds; None without data.

        A class without data uses the next smaller one: twice the tokens take at most twice the time. If
        there is none, the next larger one.
        """
        wanted = num_tokens.bit_length()
        known = [index for index, times in self._classes.items() if times.total >= MIN_STEPS]
        if not known:
            return None
        nearest = max((index for index in known if index <= wanted), default=min(known))
        return self._classes[nearest].quantile_s(QUANTILE) * 2.0 ** max(0, wanted - nearest)

    def allowed_s(self, num_tokens: int) -> float:
        usual_s = self.usual_s(num_tokens)
        if usual_s is None:
            return self.longest_s
        return min(self.longest_s, self.patience * max(FLOOR_S, FACTOR * usual_s))

    def was_late(self) -> None:
        self.patience *= 2.0
        self._num_punctual = 0
