"""Does a figure grow? A line through it by least squares, and how sure its slope is.

Samples that follow each other are alike, so a fit of all of them would look far surer than it is. The time is cut into
equal parts, and the line goes through their medians: Student's t with as many degrees of freedom as parts less two.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PARTS = 12
STUDENT_T = 2.228  # 97.5 % of Student's distribution with PARTS - 2 degrees of freedom


@dataclass(frozen=True, slots=True)
class Slope:
    """Per hour; with 95 % confidence it lies between `low` and `high`."""

    value: float
    low: float
    high: float


def slope_per_hour(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """Of figures taken at these times. With fewer than PARTS of them nothing is known."""
    if len(values) < PARTS:
        return Slope(0.0, -math.inf, math.inf)
    parts = [slice(len(values) * part // PARTS, len(values) * (part + 1) // PARTS) for part in range(PARTS)]
    hours = [statistics.fmean(seconds[part]) / 3600 for part in parts]
    levels = [statistics.median(values[part]) for part in parts]
    slope, level = statistics.linear_regression(hours, levels)
    squares = sum((y - level - slope * x) ** 2 for x, y in zip(hours, levels, strict=True))
    spread = math.sqrt(squares / (PARTS - 2) / (PARTS * statistics.pvariance(hours)))
    return Slope(slope, slope - STUDENT_T * spread, slope + STUDENT_T * spread)
