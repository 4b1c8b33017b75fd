"""Plain tables, as people read them in a terminal and paste them into a report."""

from collections.abc import Sequence

from .spread import Spread


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first stands at the left, the others at the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three figures that count, or all of a large number's; "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread_rows(unit: str, spreads: dict[str, Spread | None]) -> list[list[str]]:
    """A head and a row for each; those that were not measured are left out."""
    head = [unit, "mean", "p50", "p90", "p99", "max"]
    found = [(name, spread) for name, spread in spreads.items() if spread is not None]
    return [head, *([name, *map(number, (s.mean, s.p50, s.p90, s.p99, s.max))] for name, s in found)]
