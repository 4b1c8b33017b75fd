"""Plain-text tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of a set of values, in the values' unit."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """The statistics of `values`; None if there are none."""
        if not values:
            return None
        ordered = sorted(values)
        p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns; the first column is left-aligned, the others are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three significant digits, or all digits of a number from 100; "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread_rows(unit: str, spreads: dict[str, Spread | None]) -> list[list[str]]:
    """A header, and a row for each measure that has values."""
    head = [unit, "mean", "p50", "p90", "p99", "max"]
    found = [(name, spread) for name, spread in spreads.items() if spread is not None]
    return [head, *([name, *map(number, (s.mean, s.p50, s.p90, s.p99, s.max))] for name, s in found)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile of ascending values with linear interpolation, like numpy's; `share` is 0 to 1."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
