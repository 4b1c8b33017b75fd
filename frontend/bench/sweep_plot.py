"""A sweep of request rates as a picture: how latencies and what was achieved grow with what is offered."""

from collections.abc import Callable, Sequence

from .load_result import LoadResult
from .load_tables import rate_text
from .plot import Panel, plot
from .spread import Spread


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
        Panel("requests a second", achieved),
        Panel("time to first token, ms", lines(lambda result: result.time_to_first_token_ms)),
        Panel("between two chunks, ms", lines(lambda result: result.inter_token_ms)),
        Panel("end to end, ms", lines(lambda result: result.end_to_end_ms)),
    ]
    return plot([rate_text(rate) for rate in rates], "offered requests a second", panels)
