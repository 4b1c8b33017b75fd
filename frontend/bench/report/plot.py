"""Draws SVG plots: panels side by side that share one categorical x axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .load_result import LoadResult
from .load_tables import rate_text
from .tables import Spread

WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 340, 260, 56, 12, 40, 44
COLOURS = ("#1f6fb4", "#d1605e", "#5f9e6e")
STYLE = "text{font:11px sans-serif;fill:#333}.grid{stroke:#ddd}.title{font-weight:bold;font-size:13px}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram. Each line has one value per place on the x axis, or None."""

    title: str
    lines: dict[str, Sequence[float | None]]


def plot(places: Sequence[str], x_title: str, panels: Sequence[Panel]) -> str:
    """An SVG document. The places are evenly spaced, so that "inf" can be one of them; y begins at 0."""
    drawn = []
    for index, panel in enumerate(panels):
        drawn.append(f'<g transform="translate({index * WIDTH},0)">{_panel(places, x_title, panel)}</g>')
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    return head + '<rect width="100%" height="100%" fill="#fff"/>' + "".join(drawn) + "</svg>\n"


def _panel(places: Sequence[str], x_title: str, panel: Panel) -> str:
    top = _round_up(max((value for line in panel.lines.values() for value in line if value is not None), default=1.0))
    right, bottom = WIDTH - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM
    step = (right - MARGIN_LEFT) / len(places)
    x_of = [MARGIN_LEFT + step * (index + 0.5) for index in range(len(places))]

    def y_of(value: float) -> float:
        return bottom - value / top * (bottom - MARGIN_TOP)

    parts = [_text(MARGIN_LEFT, 16, panel.title, "start", "title"), _text(right, HEIGHT - 8, x_title, "end")]
    for quarter in range(5):
        value = top * quarter / 4
        parts.append(f'<path class="grid" d="M{MARGIN_LEFT},{y_of(value):.1f}H{right}"/>')
        parts.append(_text(MARGIN_LEFT - 6, y_of(value) + 4, f"{value:g}", "end"))
    parts += [_text(x, bottom + 16, place, "middle") for x, place in zip(x_of, places, strict=True)]
    for index, (name, values) in enumerate(panel.lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [(x, y_of(value)) for x, value in zip(x_of, values, strict=True) if value is not None]
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>' if points else "")
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<rect x="{MARGIN_LEFT + 90 * index}" y="24" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(MARGIN_LEFT + 90 * index + 14, 33, name, "start"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(text)}</text>'


def _round_up(value: float) -> float:
    """Round up to 1, 2, 4 or 8 times a power of ten, whose quarters are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if value <= factor * power * 1.0001)


def sweep_plot(rates: Sequence[float], results: Sequence[LoadResult]) -> str:
    """SVG."""

    def lines(of: Callable[[LoadResult], Spread | None]) -> dict[str, Sequence[float | None]]:
        spreads = [of(result) for result in results]
        return {
            "p50": [None if spread is None else spread.p50 for spread in spreads],
            "p99": [None if spread is None else spread.p99 for spread in spreads],
        }

    achieved: dict[str, Sequence[float | None]] = {
        "answered": [result.per_second(result.num_answered) for result in results]
    }
    if results[0].num_good is not None:
        achieved["good"] = [result.per_second(result.num_good or 0) for result in results]
    panels = [
        Panel("requests per second", achieved),
        Panel("time to first token, ms", lines(lambda result: result.time_to_first_token_ms)),
        Panel("inter-token latency, ms", lines(lambda result: result.inter_token_ms)),
        Panel("end-to-end latency, ms", lines(lambda result: result.end_to_end_ms)),
    ]
    return plot([rate_text(rate) for rate in rates], "offered requests per second", panels)
