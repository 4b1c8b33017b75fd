"""When the requests of a load arrive. The schedule is made before the first is sent and waits for no answer."""

import math
import random
from typing import Literal

Pattern = Literal["poisson", "fixed", "burst"]


def arrival_times(count: int, rate: float, pattern: Pattern, seed: int, burst_size: int = 1) -> list[float]:
    """Seconds after the start, ascending, at `rate` requests a second in the mean; math.inf: all at once.

    poisson: independent of one another; fixed: evenly; burst: `burst_size` at the same moment, the bursts evenly.
    """
    if math.isinf(rate):
        return [0.0] * count
    if pattern == "fixed":
        return [index / rate for index in range(count)]
    if pattern == "burst":
        return [index // burst_size * burst_size / rate for index in range(count)]
    draw = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += draw.expovariate(rate)
    return times
